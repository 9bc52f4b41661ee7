// Output, conversation and files of a subagent. All of it is untrusted text.
import { bytes, clock, html, line, plain, useDocument, useEffect, useLayoutEffect, useMemo, useRef, useState } from './lib.js';
import { Json } from './events.js';
import { Answer, Formatted, highlight } from './markdown.js';
import { Empty, Loading, Trouble } from './components.js';

const useFresh = (path, tick) => {
  const answer = useDocument(path);
  useEffect(() => { if (tick) answer.refresh(); }, [tick]);
  return answer;
};

// The end of an output stream; it stays in view as the stream grows, unless the reader scrolled up.
function Tail({ text, label }) {
  const box = useRef(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => { if (atEnd.current) box.current.scrollTop = box.current.scrollHeight; }, [text]);
  const scrolled = () => {
    const element = box.current;
    atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
  };
  return html`<pre class="text tail" ref=${box} onScroll=${scrolled} tabindex="0" aria-label=${label}>${text}</pre>`;
}

export function Output({ path, attempts, tick }) {
  const [stream, setStream] = useState('stdout');
  const [attempt, setAttempt] = useState(0);
  const { data, error, reload } = useFresh(`${path}/output?stream=${stream}&attempt=${attempt}`, tick);
  return html`
    <div class="panel">
      <div class="panel-head">
        <div class="chips" role="group" aria-label="Stream">${['stdout', 'stderr'].map(name => html`<button key=${name} class="chip" aria-pressed=${String(stream === name)} onClick=${() => setStream(name)}>${name}</button>`)}</div>
        ${attempts > 1 ? html`<label class="inline">Attempt <select value=${String(attempt)} onChange=${event => setAttempt(Number(event.target.value))}>
          <option value="0">newest</option>${Array.from({ length: attempts - 1 }, (_, index) => html`<option key=${index} value=${index + 1}>${index + 1}</option>`)}</select></label>` : null}
      </div>
      ${!data ? error ? html`<${Trouble} error=${error} retry=${reload} />` : html`<${Loading} />` : data.text
        ? html`${data.cut ? html`<p class="muted">The beginning is left out.</p>` : null}<${Tail} text=${plain(data.text)} label=${`${stream}, its end`} />`
        : html`<${Empty} title=${`Nothing on ${stream}`} />`}
    </div>`;
}

const text = content => (typeof content === 'string' ? content : JSON.stringify(content, null, 2));

const LONG = 900; // characters; longer texts are folded, except those of the subagent itself

const isLong = said => said.length > LONG || said.split('\n').length > 16;
const Folded = ({ said, label }) => (isLong(said)
  ? html`<details><summary>${said.slice(0, 120)}…</summary><pre class="text" tabindex="0" aria-label=${label}>${said}</pre></details>`
  : html`<pre class="text" tabindex="0" aria-label=${label}>${said}</pre>`);

const Said = ({ side, text: said }) => (side === 'assistant' || (side === 'user' && !isLong(said)) ? html`<${Formatted} text=${said} />`
  : side === 'system' ? html`<details><summary>${said.slice(0, 120)}…</summary><pre class="text" tabindex="0" aria-label="What it was told">${said}</pre></details>` : html`<${Folded} said=${said} label="What was said" />`);

const SUBJECTS = ['path', 'file_path', 'command', 'cmd', 'url', 'pattern', 'query', 'agent_id', 'description'];

// What a call is about, in a few words: the file, the command or the address that it names.
function subjectOf(call) {
  let given = call?.arguments ?? call?.function?.arguments ?? call?.input;
  if (typeof given === 'string') {
    try {
      given = JSON.parse(given);
    } catch { /* not JSON: shown when the call is opened */ }
  }
  if (given === null || typeof given !== 'object') return '';
  const found = SUBJECTS.map(name => given[name]).find(value => (typeof value === 'string' && value.trim()) || (Array.isArray(value) && value.length));
  const shown = line(Array.isArray(found) ? found.join(' ') : found ?? '');
  return shown.length > 80 ? `${shown.slice(0, 79)}…` : shown;
}

// A tool call, and its result once there is one.
function Call({ call, result }) {
  const asked = subjectOf(call);
  const given = result === undefined ? null : plain(text(result.content ?? ''));
  const brief = given === null ? '' : line(given.trim().split('\n')[0]).slice(0, 120);
  return html`<details class="call"><summary>calls <code>${line(call?.tool || call?.function?.name || 'a tool')}</code>${asked ? html` <code>${asked}</code>` : null}${brief ? html` <span class=${/^(?:error|refused)\b/i.test(brief) ? 'bad' : ''}>→ ${brief}</span>` : null}</summary>
    <${Json} value=${call?.arguments ?? call} />${given === null ? null : html`<pre class="text" tabindex="0" aria-label="What it gave back">${given}</pre>`}</details>`;
}

const callsOf = entry => [entry.calls, entry.tool_calls].find(Array.isArray) || [];

function Entry({ entry, results }) {
  const role = String(entry.role || entry.type || 'entry');
  const tool = entry.call?.tool || entry.name || entry.tool;
  const calls = callsOf(entry);
  const who = entry.member;
  const side = { user: 'user', assistant: 'assistant', tool: 'tool', system: 'system' }[role] || 'tool';
  const { content } = entry;
  return html`
    <li class=${`said-by ${side}`}>
      <div class="said-head"><strong>${line(role)}</strong>${who ? html`<span>${line(who)}</span>` : null}${tool ? html`<code>${line(tool)}</code>` : null}${entry.attempt ? html`<small>attempt ${Number(entry.attempt)}</small>` : null}${entry.at ? html`<small>${clock(entry.at)}</small>` : null}</div>
      ${content != null && content !== '' ? html`<${Said} side=${side} text=${plain(text(content))} />` : null}
      ${calls.map((call, index) => html`<${Call} key=${index} call=${call} result=${results.get(call)} />`)}
      ${content == null && !calls.length ? html`<${Json} value=${entry} />` : null}
    </li>`;
}

// Match results with their calls; ids of calls may repeat. Returns the result of each call, and the entries that are
// shown with their call.
function pair(entries) {
  const open = new Map();
  const results = new Map();
  const folded = new Set();
  for (const entry of entries) {
    const of = id => `${entry.member ?? ''}/${id}`;
    const id = entry.call?.id ?? entry.tool_call_id;
    if (entry.role === 'tool' && open.has(of(id))) {
      results.set(open.get(of(id)), entry);
      open.delete(of(id));
      folded.add(entry);
    }
    for (const call of callsOf(entry)) if (call?.id != null) open.set(of(call.id), call);
  }
  return { results, shown: entries.filter(entry => !folded.has(entry)) };
}

export function Conversation({ path, tick }) {
  const { data, error, reload } = useFresh(`${path}/conversation`, tick);
  const [member, setMember] = useState('');
  const { results, shown } = useMemo(() => pair(data ? data.entries : []), [data]);
  if (!data) return html`<div class="panel">${error ? html`<${Trouble} error=${error} retry=${reload} />` : html`<${Loading} />`}</div>`;
  if (!data.entries.length) return html`<div class="panel"><${Empty} title="Nothing was said yet"><p>A command has no conversation; teams and coding agents do.</p><//></div>`;
  const members = [...new Set(shown.map(entry => entry.member).filter(name => typeof name === 'string'))];
  const chosen = members.includes(member) ? member : '';
  return html`<div class="panel">
    ${members.length > 1 ? html`<div class="panel-head"><div class="chips" role="group" aria-label="Whose conversation">${['', ...members].map(name => html`
      <button key=${name} class="chip" aria-pressed=${String(chosen === name)} onClick=${() => setMember(name)}>${line(name) || 'All'}</button>`)}</div></div>` : null}
    ${data.more ? html`<p class="muted">Only the newest entries are shown.</p>` : null}
    <ol class="conversation">${shown.filter(entry => !chosen || entry.member === chosen).map((entry, index) => html`<${Entry} key=${index} entry=${entry} results=${results} />`)}</ol></div>`;
}

const NOTED = /^(?:new file|deleted file|old mode|new mode|similarity|rename|copy|Binary files)/;
const PLACE = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;
const MOST_ROWS = 2000; // of one file that are rendered

// Parse a patch: for each file its name, the numbers of added and removed lines, and its rows with old and new line
// numbers.
function filesOf(patch) {
  const files = [];
  let at = null; // the next old and new line number; null outside of a hunk
  for (const row of patch.split('\n')) {
    const begins = /^diff --git (?:"?a\/.*?"? )"?b\/(.*?)"?$/.exec(row);
    const place = PLACE.exec(row);
    const file = files[files.length - 1];
    if (begins) {
      files.push({ name: begins[1], added: 0, removed: 0, rows: [] });
      at = null;
    } else if (file && place) {
      at = [Number(place[1]), Number(place[2])];
      file.rows.push({ kind: 'place', text: row });
    } else if (file && !at && NOTED.test(row)) {
      file.rows.push({ kind: 'place', text: row });
    } else if (at && row[0] === '+') {
      file.added += 1;
      file.rows.push({ kind: 'added', after: at[1]++, text: row.slice(1) });
    } else if (at && row[0] === '-') {
      file.removed += 1;
      file.rows.push({ kind: 'removed', before: at[0]++, text: row.slice(1) });
    } else if (at && row[0] === ' ') {
      file.rows.push({ kind: '', before: at[0]++, after: at[1]++, text: row.slice(1) });
    } else if (at && row[0] === '\\') {
      file.rows.push({ kind: 'place', text: row.slice(2) });
    }
  }
  return files;
}

const Rest = ({ rows }) => (rows.length > MOST_ROWS ? html`<p class="muted">${rows.length - MOST_ROWS} more lines are left out.</p>` : null);

function Rows({ rows }) {
  return html`<div class="table-frame" tabindex="0" role="group" aria-label="Diff"><table class="patch"><tbody>${rows.slice(0, MOST_ROWS).map((row, index) => (row.kind === 'place'
    ? html`<tr key=${index} class="place"><td colspan="3">${row.text}</td></tr>`
    : html`<tr key=${index} class=${row.kind}><td class="number">${row.before ?? ''}</td><td class="number">${row.after ?? ''}</td><td>${row.text || '\u00a0'}</td></tr>`))}</tbody></table></div><${Rest} rows=${rows} />`;
}

// Old and new text side by side; removed lines are beside the lines that replaced them.
function SideBySide({ rows }) {
  const pairs = [];
  let removed = [];
  let added = [];
  const flush = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1) pairs.push([removed[at], added[at]]);
    removed = [];
    added = [];
  };
  for (const row of rows.slice(0, MOST_ROWS)) {
    if (row.kind === 'removed') removed.push(row);
    else if (row.kind === 'added') added.push(row);
    else {
      flush();
      pairs.push([row, row]);
    }
  }
  flush();
  const cell = row => html`<td class=${row ? row.kind : ''}>${row ? row.text : ''}</td>`;
  return html`<div class="table-frame" tabindex="0" role="group" aria-label="Diff, side by side"><table class="sides"><tbody>${pairs.map(([before, after], index) => (
    before?.kind === 'place' ? html`<tr key=${index}><td colspan="2" class="place">${before.text}</td></tr>`
      : html`<tr key=${index}>${cell(before)}${cell(after)}</tr>`))}</tbody></table></div><${Rest} rows=${rows} />`;
}

function Patch({ value }) {
  const [sides, setSides] = useState(false);
  const files = useMemo(() => filesOf(plain(value)), [value]);
  const sum = name => files.reduce((total, file) => total + file[name], 0);
  return html`
    <div class="panel-head"><span>${files.length} ${files.length === 1 ? 'file' : 'files'} <b class="plus">+${sum('added')}</b> <b class="minus">-${sum('removed')}</b></span>
      <div class="chips" role="group" aria-label="How to show changes">${[[false, 'Unified'], [true, 'Side by side']].map(([value, label]) => html`<button key=${label} class="chip" aria-pressed=${String(sides === value)} onClick=${() => setSides(value)}>${label}</button>`)}</div></div>
    ${files.map(file => html`
      <details key=${file.name} class="patch-file" open=${files.length <= 5 && file.rows.length <= 400}>
        <summary><code>${file.name}</code> <b class="plus">+${file.added}</b> <b class="minus">-${file.removed}</b></summary>
        ${sides ? html`<${SideBySide} rows=${file.rows} />` : html`<${Rows} rows=${file.rows} />`}
      </details>`)}`;
}

const MARKDOWN = /\.(?:md|markdown)$/i;
const CODE = /\.(?:py|js|mjs|ts|tsx|jsx|sh|bash|c|h|cc|cpp|hpp|rs|go|java|kt|rb|php|sql|toml|yaml|yml|json|css)$/i;
const LONGEST_CODE = 50000; // longer files are shown without colours

function File({ path, name }) {
  const { data, error } = useDocument(`${path}/file?path=${encodeURIComponent(name)}`);
  if (error) return html`<p class="note warn">${line(error.message)}</p>`;
  if (!data) return html`<${Loading} lines=${2} />`;
  const shown = plain(data.text);
  const text = MARKDOWN.test(name) ? html`<${Answer} text=${data.text} label=${line(name)} />`
    : html`<pre class="text code" tabindex="0" aria-label=${line(name)}>${CODE.test(name) && shown.length < LONGEST_CODE ? highlight(shown) : shown}</pre>`;
  return html`${text}${data.cut ? html`<p class="muted">The rest is left out.</p>` : null}`;
}

export function Files({ path, tick }) {
  const { data, error, reload } = useFresh(`${path}/files`, tick);
  const [open, setOpen] = useState(null);
  if (!data) return html`<div class="panel">${error ? html`<${Trouble} error=${error} retry=${reload} />` : html`<${Loading} />`}</div>`;
  return html`
    <div class="panel">
      ${data.patch ? html`<h3>Changes</h3><${Patch} value=${data.patch.text} />${data.patch.cut ? html`<p class="muted">The rest is left out.</p>` : null}` : null}
      <h3>Written since it began</h3>
      ${!data.files.length ? html`<${Empty} title="No files" />` : html`
        <ul class="files">${data.files.map(file => html`
          <li key=${file.path}>
            ${file.kind === 'file' ? html`<button class="file" aria-expanded=${String(open === file.path)} onClick=${() => setOpen(open === file.path ? null : file.path)}><code>${line(file.path)}</code></button>` : html`<span class="file"><code>${line(file.path)}</code> <small>${file.kind}, not followed</small></span>`}
            <span class="muted">${bytes(file.size)}</span>
            ${open === file.path ? html`<div class="file-text"><${File} path=${path} name=${file.path} /></div>` : null}
          </li>`)}</ul>`}
      ${data.more ? html`<p class="muted">There are more; the workspace has them all.</p>` : null}
    </div>`;
}
