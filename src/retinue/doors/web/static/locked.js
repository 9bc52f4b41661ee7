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
  if (answer.ok) location.reload();
  else problem.textContent = 'That is not the token.';
});
