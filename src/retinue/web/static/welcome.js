// The first page of a session: keeps its CSRF token, then goes on to the others.
import { keepToken } from './token.js';

if (keepToken(document.querySelector('meta[name="csrf-token"]').content)) location.replace('/');
else document.getElementById('welcome').textContent = 'This page needs the browser to store data for this address. Allow that, and open a new link.';
