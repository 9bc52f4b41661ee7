// Before the first paint, so that the wrong colours never show.
try {
  const chosen = localStorage.getItem('retinue.theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing follows its system */ }
