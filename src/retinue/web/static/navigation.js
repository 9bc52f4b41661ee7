// Navigation without new documents. The address keeps the selection, the history the scroll position.

// The selection is in the address, so that a reload, a link and the back button show it again.
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

// Restore the scroll position of this address, as soon as the page is long enough.
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
  if (wanted) restored = requestAnimationFrame(look); // by then the new page has replaced the old one
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

// Show another page after an action, without a click on a link.
export function moveTo(address) {
  go(address);
  dispatchEvent(new PopStateEvent('popstate'));
}

// Keep the scroll position of each address. A page that the reader has scrolled is not moved.
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
