// First page of a session: stores its CSRF token, then opens the page itself.
import { keepToken } from './token.js';

if (keepToken(document.querySelector('meta[name="csrf-token"]').content)) location.replace('/');
else document.getElementById('welcome').textContent = 'This page needs the browser to store data for this address. Allow that, and open a new link.';
