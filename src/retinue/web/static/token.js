// The CSRF token of the session. Storage belongs to one host and port; a cookie goes to every port of the host.
const NAME = 'retinue.csrf';

export function keepToken(token) {
  try {
    localStorage.setItem(NAME, token);
    return true;
  } catch {
    return false;
  }
}

export function token() {
  try {
    return localStorage.getItem(NAME) || '';
  } catch {
    return '';
  }
}
