// Moving between pages without loading them anew: what is chosen, and how far down, belongs to each place.

// What is chosen on a page is in its address, so that a reload, a link and the way back show it again.
export const inAddress = name => new URLSearchParams(location.search).get(name) || '';

export function keepInAddress(chosen) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(chosen)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const search = query.size ? `?${query}` : '';
  if (search !== location.search) history.replaceState(history.state, '', location.pathname + search);
}

const PATIENCE_MS = 3000;
let waits = 0;
let restored = 0;

// Back to where this place was left, as soon as there is enough of it again.
export function restoreScroll() {
  const wanted = history.state?.y || 0;
  const end = performance.now() + PATIENCE_MS;
  const look = () => {
    restored = 0;
    scrollTo(0, wanted);
    const early = Math.abs(scrollY - wanted) > 1 || document.querySelector('main .loading');
    if (early && performance.now() < end) restored = requestAnimationFrame(look);
  };
  cancelAnimationFrame(restored);
  restored = 0;
  if (wanted) restored = requestAnimationFrame(look); // by then the page that was left is gone
  else scrollTo(0, 0);
}

function remember() {
  clearTimeout(waits);
  waits = 0;
  history.replaceState({ y: scrollY }, '');
}

export function go(address) {
  remember();
  history.pushState(null, '', address);
  restoreScroll();
}

// Show another page because of what was done, not because of a link.
export function moveTo(address) {
  go(address);
  dispatchEvent(new PopStateEvent('popstate'));
}

// Each place remembers how far down it was; a page that the reader scrolled is not moved.
export function rememberScroll() {
  history.scrollRestoration = 'manual';
  const letGo = () => { cancelAnimationFrame(restored); restored = 0; };
  for (const kind of ['wheel', 'touchmove', 'keydown', 'mousedown']) addEventListener(kind, letGo, { passive: true });
  addEventListener('scroll', () => {
    if (restored) return;
    clearTimeout(waits);
    waits = setTimeout(remember, 100);
  }, { passive: true });
  addEventListener('popstate', () => clearTimeout(waits));
  addEventListener('pagehide', () => { if (!restored) remember(); });
  restoreScroll();
}
