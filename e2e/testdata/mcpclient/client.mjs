// A client with the official TypeScript SDK. Its argument is a JSON object: either command, args and env of a server on
// standard input and output, or url and token of one over HTTP. It calls every tool, and writes what it saw as JSON.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const o = JSON.parse(process.argv[2]);
const transport = o.url
  ? new StreamableHTTPClientTransport(new URL(o.url), { requestInit: { headers: { Authorization: 'Bearer ' + o.token } } })
  : new StdioClientTransport({ command: o.command, args: o.args, env: o.env, stderr: 'inherit' });
const client = new Client({ name: 'typescript', version: '1' });
await client.connect(transport);

const tools = (await client.listTools()).tools.map((t) => t.name);
const results = {};
const call = async (name, args, options) => {
  const r = await client.callTool({ name, arguments: args }, undefined, options);
  results[name] = { isError: r.isError ?? false, text: r.content.map((c) => c.text ?? '').join('') };
  return results[name].text;
};
await call('write_file', { path: 'a.txt', content: 'one\n' });
await call('read_file', { path: 'a.txt' });
await call('list_dir', { path: '.' });
await call('glob', { pattern: '*.txt' });
await call('grep', { pattern: 'one' });
await call('patch_file', { path: 'a.txt', old: 'one', new: 'two' });
await call('apply_patch', { patch: '*** Begin Patch\n*** Add File: b.txt\n+three\n*** End Patch' });
await call('delete_file', { path: 'b.txt' });
await call('verify', { checks: [{ kind: 'file_exists', path: 'a.txt' }] });
await call('verify_shell', { checks: [{ kind: 'shell', cmd: 'grep two a.txt' }] });

// A command in the background is there, and is gone once it is killed.
const count = async (n) => Number((await call('shell', { command: `cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep ${n.slice(0, -1)}[${n.slice(-1)}]' | wc -l` })).match(/\n(\d+)\n/)[1]);
const handle = (await call('shell', { command: 'echo begun; exec sleep 12346', background: true })).match(/started in the background: (\S+)/)[1];
const background = await count('12346');
await call('shell_output', { handle });
await call('shell_kill', { handle });
const killed = await count('12346');

const terminal = (await call('shell', { command: 'cat', background: true, terminal: true })).match(/started on a terminal: (\S+)/)[1];
await call('shell_input', { handle: terminal, text: 'typed\n' });
await call('shell_kill', { handle: terminal });

// One that is cancelled is gone too, and its output came while it ran.
let progress = [];
const abort = new AbortController();
const cancelled = await call('shell', { command: 'echo begun; sleep 12345' }, {
  signal: abort.signal, onprogress: (p) => { progress.push(p); abort.abort(); },
}).then(() => false, () => true);
const left = await count('12345');
await client.close();
console.log(JSON.stringify({ tools, results, handle, background, killed, cancelled, left, progress }));
