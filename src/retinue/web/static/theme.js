// Runs before the first paint, so that the page does not flash in the wrong colours.
try {
  const chosen = localStorage.getItem('retinue.theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing follows its system */ }
