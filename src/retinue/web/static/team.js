// The team of a subagent by its own report, its attempts, its usage and its model calls.
import { advised, clock, cost, duration, html, line, moment, plain, seconds, whole } from './lib.js';
import { Empty, Pill } from './components.js';

const PHASES = [['initial_answer', 'answers'], ['enforcement', 'votes'], ['presentation', 'result']];

function Member({ member, most, winner }) {
  return html`
    <li class=${winner ? 'winner' : ''}>
      <div class="member-head"><strong>${line(member.member)}</strong>${winner ? html`<span class="badge win">winner</span>` : null}<span class="muted">${member.votes} ${member.votes === 1 ? 'vote' : 'votes'}</span></div>
      ${member.doing ? html`<p class="doing">${line(member.doing)}</p>` : null}
      <div class="votes" aria-hidden="true"><i style=${{ width: `${most ? (member.votes / most) * 100 : 0}%` }}></i></div>
      ${member.answer != null ? html`<details><summary>answer</summary><pre class="text" tabindex="0" aria-label=${`Answer of ${line(member.member)}`}>${plain(member.answer)}</pre></details>` : html`<p class="muted">no answer yet</p>`}
    </li>`;
}

export function Team({ team }) {
  if (!team) return null;
  const at = PHASES.findIndex(([name]) => name === team.phase);
  const most = Math.max(0, ...team.members.map(member => member.votes));
  const percent = team.completion_percentage;
  return html`
    <section class="card team" aria-labelledby="team-title">
      <h2 id="team-title">Team <small class="muted">as it tells of itself</small></h2>
      <ol class="phases">${PHASES.map(([name, label], index) => html`<li key=${name} class=${index < at ? 'done' : index === at ? 'now' : ''} aria-current=${index === at ? 'step' : undefined}>${label}</li>`)}</ol>
      ${percent != null ? html`<div class="percent"><div class="votes" role="img" aria-label=${`${percent} percent`}><i style=${{ width: `${percent}%` }}></i></div><span>${percent}%</span></div>` : null}
      <ul class="members">${team.members.map(member => html`<${Member} key=${member.member} member=${member} most=${most} winner=${member.member === team.winner} />`)}</ul>
      ${team.problem ? html`<p class="note warn">${plain(team.problem)}</p>` : null}
    </section>`;
}

export function Attempts({ attempts }) {
  if (!attempts.length) return null;
  return html`
    <section class="card" aria-labelledby="attempts-title"><h2 id="attempts-title">Attempts <small class="muted">and the result of each</small></h2>
      <ol class="attempts">${attempts.map(each => html`
        <li key=${each.attempt}><b>#${each.attempt}</b><${Pill} status=${each.result ? each.result.status : 'running'} />
          ${each.node ? html`<small class="node-mark" title="the node that ran it">${line(each.node)}</small>` : null}<span class="muted" title=${moment(each.started_at)}>${clock(each.started_at)}${each.ended_at ? `, ${duration(each.result?.execution_time_seconds ?? seconds(each.started_at, each.ended_at))}` : ''}</span>
          ${each.result && each.result.error ? html`<p class="muted">${line(advised(each.result.error))}</p>` : null}</li>`)}</ol>
    </section>`;
}

const WIDE = 320;
const TALL = 90;

// Cumulative tokens and cost over time, as steps.
export function Usage({ paid }) {
  if (!paid.length) return null;
  const from = Date.parse(paid[0].ts);
  const span = Math.max(1, Date.parse(paid[paid.length - 1].ts) - from);
  let tokens = 0;
  let money = 0;
  const points = paid.map(each => {
    tokens += each.input_tokens + each.output_tokens;
    money += each.cost;
    return [(Date.parse(each.ts) - from) / span, tokens, money];
  });
  const path = (of, most) => {
    let drawn = `M0 ${TALL}`;
    for (const point of points) drawn += `H${(point[0] * WIDE).toFixed(1)}V${(TALL - (most ? point[of] / most : 0) * (TALL - 6)).toFixed(1)}`;
    return `${drawn}H${WIDE}`;
  };
  const models = [...new Set(paid.map(each => each.model))];
  return html`
    <section class="card usage" aria-labelledby="usage-title"><h2 id="usage-title">Usage</h2>
      <svg viewBox=${`0 0 ${WIDE} ${TALL}`} preserveAspectRatio="none" role="img" aria-label=${`${tokens} tokens and ${cost(money)} over ${duration(span / 1000)}`}>
        <path class="area" d=${`${path(1, tokens)}V${TALL}Z`} /><path class="line-tokens" d=${path(1, tokens)} /><path class="line-cost" d=${path(2, money)} />
      </svg>
      <div class="usage-key"><span><i class="key-tokens"></i>${whole(tokens)} tokens</span><span><i class="key-cost"></i>${cost(money)}</span><span class="muted">${paid.length} requests</span></div>
      <p class="muted">${models.map(line).join(', ')}</p>
    </section>`;
}

// Table of all model requests: when, how long, tokens, cost.
export function Calls({ paid }) {
  if (!paid.length) return html`<div class="panel"><${Empty} title="It asked no model"><p>Requests through the gateway are listed here.</p><//></div>`;
  const ended = each => Date.parse(each.ts);
  const began = each => ended(each) - (each.seconds || 0) * 1000;
  const from = Math.min(...paid.map(began));
  const total = Math.max(1, Math.max(...paid.map(ended)) - from);
  const known = each => (each.cached_tokens ? html` <small title="read from the provider's cache">${whole(each.cached_tokens)} cached</small>` : null);
  const thought = each => (each.reasoning_tokens ? html` <small title="spent on reasoning">${whole(each.reasoning_tokens)} reasoning</small>` : null);
  return html`
    <div class="panel"><div class="table-frame" tabindex="0" role="group" aria-label="Model calls"><table class="sums calls">
      <thead><tr><th>Ended</th><th>Model</th><th>When</th><th>Took</th><th>In</th><th>Out</th><th>Cost</th></tr></thead>
      <tbody>${paid.map((each, index) => html`<tr key=${index}><td title=${moment(each.ts)}>${clock(each.ts)}${each.attempt > 1 ? html` <small>#${each.attempt}</small>` : null}</td>
        <td>${line(each.model)}${each.status !== 'completed' ? html` <small>${line(each.status)}</small>` : null}</td>
        <td class="when"><i aria-hidden="true" style=${{ left: `${((began(each) - from) / total) * 100}%`, width: `max(2px, ${((each.seconds || 0) * 100000) / total}%)` }}></i></td>
        <td>${each.seconds == null ? '–' : duration(each.seconds)}</td>
        <td>${each.estimated ? '≈' : ''}${whole(each.input_tokens)}${known(each)}</td><td>${each.estimated ? '≈' : ''}${whole(each.output_tokens)}${thought(each)}</td>
        <td>${each.priced ? cost(each.cost) : html`<span title="no price is known for this model">?</span>`}</td></tr>`)}</tbody></table></div></div>`;
}
