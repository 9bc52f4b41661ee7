// What a subagent left behind: its output, what was said, and what it wrote. All of it foreign.
import { bytes, clock, Fragment, html, line, plain, useDocument, useEffect, useLayoutEffect, useMemo, useRef, useState } from './lib.js';
import { Json } from './events.js';
import { Answer, Formatted, highlight } from './markdown.js';
import { Empty, Loading, Trouble } from './parts.js';

const useFresh = (path, tick) => {
  const answer = useDocument(path);
  useEffect(() => { if (tick) answer.refresh(); }, [tick]);
  return answer;
};

// The end of a stream, kept in sight as it grows unless the reader scrolled away from it.
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

// What a tool gave back, and what a member was told first, is long: it opens on demand.
const Said = ({ side, text: said }) => (['tool', 'system'].includes(side) && said.length > 400
  ? html`<details><summary>${said.slice(0, 120)}…</summary><pre class="text">${said}</pre></details>`
  : side === 'assistant' ? html`<${Formatted} text=${said} />` : html`<pre class="text">${said}</pre>`);

function Entry({ entry }) {
  const role = String(entry.role || entry.type || 'entry');
  const tool = entry.call?.tool || entry.name || entry.tool;
  const calls = [entry.calls, entry.tool_calls].find(Array.isArray) || [];
  const who = entry.member;
  const side = { user: 'user', assistant: 'assistant', tool: 'tool', system: 'system' }[role] || 'tool';
  const { content } = entry;
  return html`
    <li class=${`said-by ${side}`}>
      <div class="said-head"><strong>${line(role)}</strong>${who ? html`<span>${line(who)}</span>` : null}${tool ? html`<code>${line(tool)}</code>` : null}${entry.attempt ? html`<small>attempt ${Number(entry.attempt)}</small>` : null}${entry.at ? html`<small>${clock(entry.at)}</small>` : null}</div>
      ${content != null && content !== '' ? html`<${Said} side=${side} text=${plain(text(content))} />` : null}
      ${calls.map((call, index) => html`<details key=${index} class="call"><summary>calls <code>${line(call?.tool || call?.function?.name || 'a tool')}</code></summary><${Json} value=${call?.arguments ?? call} /></details>`)}
      ${content == null && !calls.length ? html`<${Json} value=${entry} />` : null}
    </li>`;
}

export function Conversation({ path, tick }) {
  const { data, error, reload } = useFresh(`${path}/conversation`, tick);
  if (!data) return html`<div class="panel">${error ? html`<${Trouble} error=${error} retry=${reload} />` : html`<${Loading} />`}</div>`;
  if (!data.entries.length) return html`<div class="panel"><${Empty} title="Nothing was said yet" /></div>`;
  return html`<div class="panel">${data.more ? html`<p class="muted">Only the newest entries are shown.</p>` : null}
    <ol class="conversation">${data.entries.map((entry, index) => html`<${Entry} key=${index} entry=${entry} />`)}</ol></div>`;
}

const KINDS = [[/^(index|---|\+\+\+|new file|deleted file|old mode|new mode|similarity|rename)/, 'meta'], [/^@@/, 'place'], [/^\+/, 'added'], [/^-/, 'removed']];
const MOST_ROWS = 2000; // of one file, drawn at once

// A patch by file: its name, how many lines were added and removed, and its rows.
function filesOf(patch) {
  const files = [];
  for (const row of patch.split('\n')) {
    const begins = /^diff --git (?:"?a\/.*?"? )"?b\/(.*?)"?$/.exec(row);
    if (begins) files.push({ name: begins[1], added: 0, removed: 0, rows: [] });
    else if (files.length) {
      const file = files[files.length - 1];
      if (/^\+(?!\+\+ )/.test(row)) file.added += 1;
      else if (/^-(?!-- )/.test(row)) file.removed += 1;
      file.rows.push(row);
    }
  }
  return files;
}

const Rows = ({ rows }) => html`
  <pre class="patch" tabindex="0" aria-label="Diff">${rows.slice(0, MOST_ROWS).map((row, index) => html`<${Fragment} key=${index}><span class=${(KINDS.find(([pattern]) => pattern.test(row)) || [0, ''])[1]}>${row}</span>${'\n'}<//>`)}${rows.length > MOST_ROWS ? `… ${rows.length - MOST_ROWS} more lines` : ''}</pre>`;

// Old and new text side by side: removed lines stand beside the lines that replaced them.
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
    if (/^(?:index|---|\+\+\+|new file|deleted file|old mode|new mode|similarity|rename)/.test(row)) continue;
    if (row.startsWith('-')) removed.push(row.slice(1));
    else if (row.startsWith('+')) added.push(row.slice(1));
    else {
      flush();
      pairs.push(row.startsWith('@@') ? [row] : [row.slice(1), row.slice(1), 'same']);
    }
  }
  flush();
  const cell = (text, kind) => html`<td class=${text === undefined ? '' : kind}>${text ?? ''}</td>`;
  return html`<div class="table-frame" tabindex="0" role="group" aria-label="Diff, side by side"><table class="sides"><tbody>${pairs.map(([before, after, same], index) => (
    after === undefined && before?.startsWith('@@') ? html`<tr key=${index}><td colspan="2" class="place">${before}</td></tr>`
      : html`<tr key=${index}>${cell(before, same ? '' : 'removed')}${cell(after, same ? '' : 'added')}</tr>`))}</tbody></table></div>`;
}

function Patch({ value }) {
  const [sides, setSides] = useState(false);
  const files = useMemo(() => filesOf(plain(value)), [value]);
  const sum = name => files.reduce((total, file) => total + file[name], 0);
  return html`
    <div class="panel-head"><span>${files.length} ${files.length === 1 ? 'file' : 'files'} <b class="plus">+${sum('added')}</b> <b class="minus">-${sum('removed')}</b></span>
      <button class="chip" aria-pressed=${String(sides)} onClick=${() => setSides(!sides)}>Side by side</button></div>
    ${files.map(file => html`
      <details key=${file.name} class="patch-file" open=${files.length <= 5 && file.rows.length <= 400}>
        <summary><code>${file.name}</code> <b class="plus">+${file.added}</b> <b class="minus">-${file.removed}</b></summary>
        ${sides ? html`<${SideBySide} rows=${file.rows} />` : html`<${Rows} rows=${file.rows} />`}
      </details>`)}`;
}

const MARKDOWN = /\.(?:md|markdown)$/i;
const CODE = /\.(?:py|js|mjs|ts|tsx|jsx|sh|bash|c|h|cc|cpp|hpp|rs|go|java|kt|rb|php|sql|toml|yaml|yml|json|css)$/i;
const LONGEST_CODE = 50000; // a longer file is shown without colours

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
