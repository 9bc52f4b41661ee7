// Two attempts of a subagent side by side: how each ended, and a diff of their texts.
import { advised, clock, cost, duration, html, line, plain, seconds, useDocument, useMemo, useState, whole } from './lib.js';
import { Loading, Pill, Trouble } from './components.js';

const TEXTS = [['answer', 'Answer'], ['stdout', 'stdout'], ['stderr', 'stderr']];
const MOST_LINES = 800; // in the comparison, whose time grows with the square of it

// Return the diff as rows of [left, right, same], by the longest common subsequence of lines.
function compareLines(left, right) {
  const long = [...Array(left.length + 1)].map(() => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      long[i][j] = left[i] === right[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
    }
  }
  const rows = [];
  let i = 0;
  let j = 0;
  while (i < left.length || j < right.length) {
    const from = [i, j];
    while ((i < left.length || j < right.length) && left[i] !== right[j]) {
      if (j >= right.length || (i < left.length && long[i + 1][j] >= long[i][j + 1])) i += 1;
      else j += 1;
    }
    for (let [one, other] = from; one < i || other < j; one += 1, other += 1) {
      rows.push([one < i ? left[one] : undefined, other < j ? right[other] : undefined, false]);
    }
    for (; i < left.length && j < right.length && left[i] === right[j]; i += 1, j += 1) rows.push([left[i], right[j], true]);
  }
  return rows;
}

const linesOf = text => (text ? plain(text).replace(/\n$/, '').split('\n') : []);

function Differences({ left, right }) {
  const rows = useMemo(() => compareLines(linesOf(left).slice(-MOST_LINES), linesOf(right).slice(-MOST_LINES)), [left, right]);
  if (!rows.length) return html`<p class="muted">Neither has any.</p>`;
  const cell = (text, kind) => html`<td class=${text === undefined ? '' : kind}>${text ?? ''}</td>`;
  return html`
    ${rows.every(([, , same]) => same) ? html`<p class="muted">Both are the same.</p>` : null}
    <div class="table-frame" tabindex="0" role="group" aria-label="Differences"><table class="sides"><tbody>${rows.map(([before, after, same], index) => html`
      <tr key=${index}>${cell(before, same ? '' : 'removed')}${cell(after, same ? '' : 'added')}</tr>`)}</tbody></table></div>`;
}

function Outputs({ path, stream, left, right }) {
  const one = useDocument(`${path}/output?stream=${stream}&attempt=${left}`);
  const other = useDocument(`${path}/output?stream=${stream}&attempt=${right}`);
  const error = one.error || other.error;
  if (error) return html`<${Trouble} error=${error} />`;
  if (!one.data || !other.data) return html`<${Loading} />`;
  return html`<${Differences} left=${one.data.text} right=${other.data.text} />`;
}

const FACTS = [
  ['Ended as', each => (each.result ? html`<${Pill} status=${each.result.status} />` : html`<${Pill} status="running" />`)],
  ['Began', each => clock(each.started_at)],
  ['Took', each => (each.ended_at ? duration(each.result?.execution_time_seconds ?? seconds(each.started_at, each.ended_at)) : '–')],
  ['Tokens in / out', each => (each.result?.token_usage ? `${whole(each.result.token_usage.input_tokens)} / ${whole(each.result.token_usage.output_tokens)}` : '–')],
  ['Cost', each => (each.result?.token_usage ? cost(each.result.token_usage.estimated_cost) : '–')],
  ['Node', each => line(each.node || 'this machine')],
  ['Error', each => line(each.result?.error ? advised(each.result.error) : '–')],
];

export function CompareAttempts({ path, attempts }) {
  const numbers = attempts.map(each => each.attempt);
  const [pair, setPair] = useState([numbers[numbers.length - 2], numbers[numbers.length - 1]]);
  const [text, setText] = useState(attempts.some(each => each.result?.answer) ? 'answer' : 'stdout');
  const [left, right] = pair.map(number => attempts.find(each => each.attempt === number));
  const choose = place => event => setPair(pair.map((number, at) => (at === place ? Number(event.target.value) : number)));
  const picker = (place, label) => html`<select aria-label=${label} value=${String(pair[place])} onChange=${choose(place)}>${numbers.map(number => html`<option key=${number} value=${String(number)}>Attempt ${number}</option>`)}</select>`;
  return html`
    <div class="panel">
      <div class="table-frame" tabindex="0" role="group" aria-label="Attempts compared"><table class="sums compared">
        <thead><tr><td></td><th scope="col">${picker(0, 'Attempt on the left')}</th><th scope="col">${picker(1, 'Attempt on the right')}</th></tr></thead>
        <tbody>${FACTS.map(([name, of]) => html`<tr key=${name}><th scope="row">${name}</th><td>${of(left)}</td><td>${of(right)}</td></tr>`)}</tbody></table></div>
      <div class="panel-head"><div class="chips" role="group" aria-label="What to compare">${TEXTS.map(([name, label]) => html`<button key=${name} class="chip" aria-pressed=${String(text === name)} onClick=${() => setText(name)}>${label}</button>`)}</div></div>
      ${text === 'answer' ? html`<${Differences} left=${left.result?.answer} right=${right.result?.answer} />` : html`<${Outputs} path=${path} stream=${text} left=${pair[0]} right=${pair[1]} />`}
    </div>`;
}
