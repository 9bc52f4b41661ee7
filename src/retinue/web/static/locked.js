import { keepToken } from './token.js';

const form = document.getElementById('sign-in');
const problem = document.getElementById('problem');

form.hidden = form.dataset.token !== 'yes';
form.addEventListener('submit', async event => {
  event.preventDefault();
  const token = document.getElementById('token').value;
  const answer = await fetch('/api/enter', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ token }),
  });
  if (answer.ok && keepToken((await answer.json()).csrf)) location.reload();
  else if (answer.ok) problem.textContent = 'Allow this address to store data in the browser, and sign in again.';
  else problem.textContent = 'That is not the token.';
});
