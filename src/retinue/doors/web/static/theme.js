// Before the first paint, so that nobody sees the wrong colours first.
try {
  const chosen = localStorage.getItem('retinue.theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing follows its system */ }
