package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

const modelKey = "sk-0123456789-the-model's-key"

// provideModel makes the machine's configuration have the agents' models, all of which are
// model, and an agent mine that runs a shell script. It returns the server's address.
func (m *machine) provideModel(t *testing.T, model *mockmodel.Model, script string) string {
	t.Helper()
	address := serveModel(t, model)
	m.configureModels(t, func(string) string { return address },
		"  mine:\n    image: true\n    protocol: anthropic\n    models: {\"*\": anthropic, small: anthropic}\n    command: [bash, -c, "+mustJSON(t, script)+
			", sh, \"{{instruction}}\"]\n    env: {URL: \"{{base_url}}\"}\n    files: {.mine: \"{{model}} {{home}}\"}\n")
	return address
}

// serveModel serves a mock, and returns its address.
func serveModel(t *testing.T, model *mockmodel.Model) string {
	t.Helper()
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	return server.URL
}

// configureModels makes the machine's configuration have a model of each protocol, named
// like that, at an address of its own, and agents.
func (m *machine) configureModels(t *testing.T, address func(model string) string, agents string) {
	t.Helper()
	writeFile(t, filepath.Join(m.home, ".config", "caisson", "config.yaml"), modelsConfig(address)+"agents:\n"+agents, 0o644)
	m.env = append(m.env, "MODEL_KEY="+modelKey)
}

// modelsConfig is the part of a configuration that has the models of configureModels.
func modelsConfig(address func(model string) string) string {
	var b strings.Builder
	b.WriteString("models:\n")
	for name, kind := range map[string]string{
		"anthropic": "provider: anthropic, base_url: URL", "gemini": "provider: gemini, base_url: URL",
		"responses": "provider: openai, api: responses, base_url: URL/v1", "chat": "provider: openai, api: chat, base_url: URL/v1",
	} {
		fmt.Fprintf(&b, "  %s: {model: model-1, api_key_env: MODEL_KEY, price: {input: 3, output: 15}, %s}\n", name, strings.ReplaceAll(kind, "URL", address(name)))
	}
	return b.String()
}

// askModel is a function for scripts: it posts its second argument to a path of the bridge.
const askModel = `ask() { curl -sS -m 20 -H 'x-api-key: caisson-bridge' -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' "$URL$1" -d "$2"; echo; }
`

// TestAgent runs an agent that asks its model. It has the answer and never the key; requests
// that the bridge refuses don't arrive. The control gives a command the key.
func TestAgent(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		writeFile(t, filepath.Join(m.home, ".gitconfig"), "[user]\nname = Ada Lovelace\nemail = ada@example.com\n", 0o600)
		m.write(t, ".git/config", "[user]\nname = not this\n")
		model := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "the answer has sk-0123456789-the-model's-key in it"}}}
		origin := m.provideModel(t, model, askModel+`
ask /v1/messages '{"model":"small","max_tokens":50,"tools":[{"name":"mine","input_schema":{}},{"type":"web_search_20250305","name":"web_search"}],"messages":[{"role":"user","content":"'"$1"'"}]}'
for path in /v1/files /v1/messages/batches /v1/organizations /v1//messages /v1/models/../files /v1beta/cachedContents; do ask $path '{}'; done
ask /v1/messages '{"model":"x","mcp_servers":[{"type":"url","url":"https://example.com"}],"max_tokens":5,"messages":[]}'
curl -sS -m 5 --noproxy '*' `+"`echo $URL | sed s/http:/https:/`"+`/v1/messages -d {} 2>&1; curl -sS -m 5 --noproxy '*' http://model.caisson.internal:8080/ 2>&1; curl -sS -m 5 ORIGIN/v1/messages -d {} 2>&1
cat ~/.mine; env; cat /proc/*/environ | tr '\0' '\n'
`)
		out := m.run(t, "exec", "--workspace", m.workspace, "--backend", backend, "-e", "ORIGIN="+origin, "--agent", "mine", "--", "say it")
		all := out.stdout + out.stderr
		if out.status != 0 || !strings.Contains(all, "the answer has") || !strings.Contains(all, "model-1 /home/agent") || strings.Contains(all, modelKey) {
			t.Errorf("status %d:\n%s", out.status, all)
		}
		for _, variable := range []string{"GIT_AUTHOR_NAME=Ada Lovelace\n", "GIT_AUTHOR_EMAIL=ada@example.com\n", "GIT_COMMITTER_NAME=Ada Lovelace\n", "GIT_COMMITTER_EMAIL=ada@example.com\n"} {
			if !strings.Contains(out.stdout, variable) {
				t.Errorf("no %s", variable)
			}
		}
		got := model.Requests()
		if len(got) == 0 || got[0].Path != "/v1/messages" || got[0].Header.Get("X-Api-Key") != modelKey || !strings.Contains(string(got[0].Body), `"content":"say it"`) {
			t.Fatalf("the model got %d requests: %+v", len(got), got)
		}
		if body := string(got[0].Body); strings.Contains(body, "web_search") || !strings.Contains(body, `"name":"mine"`) || !strings.Contains(body, `"model":"model-1"`) {
			t.Errorf("the model got %s", body)
		}
		for _, r := range got[1:] {
			if r.Path != "/v1/messages" || strings.Contains(string(r.Body), "mcp_servers") {
				t.Errorf("%s %s arrived with %s", r.Method, r.Path, r.Body)
			}
		}
		m.wantNoText(t, modelKey)
		control := m.run(t, "exec", "--workspace", m.workspace, "--backend", backend, "-e", "MODEL_KEY", "--", "env")
		if !strings.Contains(control.stdout, modelKey) || strings.Contains(control.stdout, "GIT_AUTHOR_NAME") {
			t.Errorf("control: %s%s", control.stdout, control.stderr)
		}
		// Other sandboxes have no bridge.
		other := m.run(t, "exec", "--workspace", m.workspace, "--backend", backend, "--", "curl", "-sS", "-m", "5", "http://model.caisson.internal/v1/models")
		if other.status == 0 {
			t.Errorf("a command reaches the bridge: %s", other.stdout)
		}
	})
}

// wantNoText fails the test if a file below the machine's home has a text. Sessions that
// were given it on purpose come later.
func (m *machine) wantNoText(t *testing.T, text string) {
	t.Helper()
	err := filepath.WalkDir(m.home, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), text) {
			t.Errorf("%s has %q", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAgentBudget has an agent whose model's answer never ends. The session ends it, at the
// limit and with its name, even if the agent goes on. The control has no limit.
func TestAgentBudget(t *testing.T) {
	backend := anyBackend(t)
	for name, c := range map[string]struct {
		script string
		args   []string
		status int
		want   string
		most   struct{ tokens, cost int64 } // with 5 % more than the limit
	}{
		"tokens":   {`ask /v1/messages "$BODY"`, []string{"--max-tokens", "20000"}, 53, "20000 tokens", struct{ tokens, cost int64 }{tokens: 21_000}},
		"cost":     {`ask /v1/messages "$BODY"`, []string{"--max-cost-usd", "0.2"}, 53, "0.2", struct{ tokens, cost int64 }{cost: 210_000}},
		"goes on":  {`while :; do ask /v1/messages "$BODY"; sleep 0.2; done`, []string{"--max-tokens", "20000"}, 53, "20000 tokens", struct{ tokens, cost int64 }{tokens: 21_000}},
		"no limit": {`timeout 3 curl -sS "$URL/v1/messages" -d "$BODY" >/dev/null; exit 9`, nil, 9, "", struct{ tokens, cost int64 }{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.provideModel(t, &mockmodel.Model{Steps: []mockmodel.Step{{Text: "words without end, ", Endless: true, Pause: time.Millisecond}}},
				askModel+`BODY='{"model":"m","stream":true,"max_tokens":1000000,"messages":[{"role":"user","content":"go"}]}'
`+c.script)
			began := time.Now()
			out := m.run(t, append(append([]string{"exec", "--workspace", m.workspace, "--backend", backend}, c.args...), "--agent", "mine", "--", "go")...)
			if out.status != c.status || !strings.Contains(out.stderr, c.want) {
				t.Errorf("status %d, want %d with %q, after %s:\n%s", out.status, c.status, c.want, time.Since(began), out.stderr)
			}
			used := m.bridgedUsage(t)
			if most := c.most; c.status == 53 && (used.Tokens() == 0 || most.tokens > 0 && used.Tokens() > most.tokens || most.cost > 0 && *used.CostMicroUSD > most.cost) {
				t.Errorf("the session used %d tokens and %d millionths of a dollar", used.Tokens(), *used.CostMicroUSD)
			}
		})
	}
}

// bridgedUsage returns the usage in the last record of the machine's only session.
func (m *machine) bridgedUsage(t *testing.T) limits.Usage {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(string(traceOf(t, m))), "\n")
	last := parse[struct {
		Payload struct {
			Usage limits.Usage `json:"usage"`
		} `json:"payload"`
	}](t, lines[len(lines)-1])
	return last.Payload.Usage
}

// TestAgentsCheck checks an agent that shows its model's answer, and one that doesn't.
func TestAgentsCheck(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		for name, want := range map[string]struct {
			script string
			status int
			shown  string
		}{
			"works":  {`ask /v1/messages '{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"go"}]}'`, 0, "works, "},
			"silent": {`echo hello`, 1, "did not show the mock's answer: hello"},
		} {
			m := newMachine(t)
			m.provideModel(t, new(mockmodel.Model), askModel+want.script)
			out := m.run(t, "agents", "check", "mine", "--backend", backend)
			if out.status != want.status || !strings.Contains(out.stdout, want.shown) {
				t.Errorf("%s: status %d: %s%s", name, out.status, out.stdout, out.stderr)
			}
		}
	})
}

// TestAgentBatch runs trials of two agents of the same name with different models, and of
// nothing, and of an agent whose provider never answers.
func TestAgentBatch(t *testing.T) {
	backend := anyBackend(t)
	m := newMachine(t)
	m.provideModel(t, &mockmodel.Model{Steps: []mockmodel.Step{{Text: "made"}}}, askModel+`
ask /v1/messages '{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"go"}]}' >answer; grep -q '"text":"made"' answer && echo made >made`)
	m.write(t, "given/file", "given")
	m.write(t, "tasks.jsonl", `{"id":"make","prompt":"make it","workspace":"given","verify":"test \"$(cat made)\" = made && ! curl -sS -m 5 http://model.caisson.internal/v1/models"}`+"\n")
	out := m.run(t, "batch", "--backend", backend, "--out", m.batchDir("out"), "--agent", "mine", "--agent", "mine@anthropic", "--agent", "nop", filepath.Join(m.workspace, "tasks.jsonl"))
	outcomes, _ := m.results(t, "out")
	if outcomes["make mine 1"] != "passed" || outcomes["make mine@anthropic 1"] != "passed" || outcomes["make nop 1"] != "failed" {
		t.Errorf("%v:\n%s", outcomes, out.stderr)
	}
	spec, err := os.ReadFile(filepath.Join(m.batchDir("out"), "batch.json"))
	if err != nil || !strings.Contains(string(spec), `"agent mine": "of the image"`) {
		t.Errorf("batch.json: %s, %v", spec, err)
	}
}

// agentPrograms installs the pinned agents, or takes those in the directory that
// AGENT_PROGRAMS names. It returns the directory of their programs.
func agentPrograms(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("AGENT_PROGRAMS"); dir != "" {
		return filepath.Join(dir, "node_modules", ".bin")
	}
	for _, program := range []string{"npm", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "agents"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	// The packages' scripts only choose and copy a program, which Caisson does too.
	// The lock file has only the optional packages of this kind of machine, which npm ci refuses.
	install := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("needs the npm registry: %v\n%s", err, out)
	}
	return filepath.Join(dir, "node_modules", ".bin")
}

// realAgents are the built-in agents: the model of their protocol, and the calls by which they
// write made and run a command.
func realAgents() map[string]realAgent {
	return map[string]realAgent{
		"claude":   {"anthropic", [2]mockmodel.Call{{Name: "Write", Arguments: `{"file_path":"/workspace/made","content":"made"}`}, {Name: "Bash", Arguments: `{"command":"env; cat /proc/*/environ; echo ran >ran","description":"run"}`}}},
		"codex":    {"responses", [2]mockmodel.Call{{Name: "exec_command", Arguments: `{"cmd":"printf made >made"}`}, {Name: "exec_command", Arguments: `{"cmd":"env; cat /proc/*/environ; echo ran >ran"}`}}},
		"gemini":   {"gemini", [2]mockmodel.Call{{Name: "write_file", Arguments: `{"file_path":"/workspace/made","content":"made"}`}, {Name: "run_shell_command", Arguments: `{"command":"env; cat /proc/*/environ; echo ran >ran"}`}}},
		"opencode": {"chat", [2]mockmodel.Call{{Name: "write", Arguments: `{"filePath":"/workspace/made","content":"made"}`}, {Name: "bash", Arguments: `{"command":"env; cat /proc/*/environ; echo ran >ran","description":"run"}`}}},
		"qwen":     {"chat", [2]mockmodel.Call{{Name: "write_file", Arguments: `{"file_path":"/workspace/made","content":"made"}`}, {Name: "run_shell_command", Arguments: `{"command":"env; cat /proc/*/environ; echo ran >ran","is_background":false}`}}},
	}
}

type realAgent struct {
	model string
	calls [2]mockmodel.Call
}

// answers are those of its model: the calls, and then the last word.
func (a realAgent) answers() *mockmodel.Model {
	model := &mockmodel.Model{Side: &mockmodel.Step{Text: "Title"}}
	for _, one := range a.calls {
		model.Steps = append(model.Steps, mockmodel.Step{Calls: []mockmodel.Call{one}})
	}
	model.Steps = append(model.Steps, mockmodel.Step{Text: "PLUMAGE"})
	return model
}

// oddInstruction has nothing that may be an option, a placeholder or the shell's.
const oddInstruction = `--version of "it" {{model}} $(touch pwned) 'x'`

// TestRealAgents has each built-in agent, or one in a sample, write a file, run a command and
// answer, without a network, also in a container where no namespaces can be made. What the
// command prints has no key. Then each has an answer that doesn't end, and Claude Code and
// Codex are in a batch.
func TestRealAgents(t *testing.T) {
	t.Parallel()
	bin := agentPrograms(t)
	agents := realAgents()
	names := sandboxtest.Sampled(t, slices.Sorted(maps.Keys(agents))...)
	onEachBackend(t, func(t *testing.T, backend string) {
		for _, name := range names {
			c := agents[name]
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they wait for themselves
				m := newMachine(t)
				m.env[0] = "PATH=" + bin + ":" + hostPath
				model := c.answers()
				m.provideModel(t, model, "")
				out := m.run(t, "exec", "--workspace", m.workspace, "--backend", backend, "--model", c.model, "--agent", name, "--", oddInstruction)
				if out.status != 0 || !strings.Contains(out.stdout, "PLUMAGE") || strings.Contains(out.stderr, "refused") {
					t.Errorf("status %d:\n%s\n%s", out.status, out.stdout, out.stderr)
				}
				for file, want := range map[string]string{"made": "made", "ran": "ran"} {
					if got, err := os.ReadFile(filepath.Join(m.workspace, file)); err != nil || strings.TrimSpace(string(got)) != want {
						t.Errorf("%s: %q, %v", file, got, err)
					}
				}
				if _, err := os.Stat(filepath.Join(m.workspace, "pwned")); err == nil {
					t.Error("a shell got the instruction")
				}
				checkAgentRequests(t, model.Requests())
				m.wantNoText(t, modelKey)
			})
		}
	})
	t.Run("container job", func(t *testing.T) { realAgentsInJobs(t, filepath.Dir(filepath.Dir(bin)), names) })
	t.Run("budget", func(t *testing.T) {
		for _, name := range sandboxtest.Sampled(t, slices.Sorted(maps.Keys(agents))...) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				m.env[0] = "PATH=" + bin + ":" + hostPath
				m.spendAll(t, "--model", agents[name].model, "--agent", name)
			})
		}
	})
	t.Run("batch", func(t *testing.T) { realAgentsBatch(t, bin) })
}

// realAgentsInJobs has agents work in the most restricted container job. Its network is this
// machine's, where the mocks are.
func realAgentsInJobs(t *testing.T, programs string, names []string) {
	kit := newJobKit(t)
	job := suiteJob
	job.change = func(t *testing.T, h *container.HostConfig) {
		suiteJob.change(t, h)
		h.NetworkMode = "host"
		h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: programs, Target: "/opt/agents", ReadOnly: true})
	}
	agents := realAgents()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := agents[name].answers()
			address := serveModel(t, model)
			writeFile(t, filepath.Join(kit.dir, name, "caisson", "config.yaml"), modelsConfig(func(string) string { return address }), 0o644)
			p := kit.container(t, job)
			out := p.begin(t, []string{"PATH=/opt/agents/node_modules/.bin:/usr/bin:/bin", "XDG_CONFIG_HOME=" + filepath.Join(p.kit, name), "MODEL_KEY=" + modelKey},
				p.on("exec", "--model", agents[name].model, "--agent", name, "--", oddInstruction)).wait(t)
			if out.status != 0 || !strings.Contains(out.stdout, "PLUMAGE") || strings.Contains(out.stderr, "refused") {
				t.Errorf("status %d:\n%s\n%s", out.status, out.stdout, out.stderr)
			}
			left := p.sh(t, "cd "+p.project()+"; echo $(cat made)$(cat ran); ls pwned; grep -rF '"+strings.ReplaceAll(modelKey, "'", `'\''`)+"' "+p.dir)
			if strings.TrimSpace(left.stdout) != "maderan" {
				t.Errorf("the agent has left %q", left.stdout)
			}
			checkAgentRequests(t, model.Requests())
			p.wantNothingLeft(t)
		})
	}
}

// spendAll has an agent whose model's answer doesn't end, in a session with a limit. The agent
// must be gone within 10 seconds after it, with the limit's name, and have passed it by at
// most 5 %.
func (m *machine) spendAll(t *testing.T, args ...string) {
	t.Helper()
	const most = 60_000 // Claude Code's first request has 25,000
	endless := mockmodel.Step{Text: "words without end, ", Endless: true, Pause: time.Millisecond}
	m.provideModel(t, &mockmodel.Model{Side: &mockmodel.Step{Text: "Title"}, Steps: []mockmodel.Step{endless}}, "")
	out := m.run(t, slices.Concat([]string{"exec", "--workspace", m.workspace, "--backend", anyBackend(t), "--max-tokens", strconv.Itoa(most)}, args, []string{"--", "write a long story"})...)
	if out.status != 53 || !strings.Contains(out.stderr, strconv.Itoa(most)+" tokens") {
		t.Errorf("status %d:\n%s\n%s", out.status, tail(out.stdout, 5), out.stderr)
	}
	if used := m.bridgedUsage(t).Tokens(); used < most/2 || used > most*105/100 {
		t.Errorf("%d tokens of %d were used", used, most)
	}
	all, err := record.ReadTrace(bytes.NewReader(traceOf(t, m)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all.Records {
		if r.Kind == record.KindBridgeModelCall && record.PayloadOf[record.BridgeModelCall](r).Class == loop.ErrorClass(bridge.ClassBudget) {
			took := all.Records[len(all.Records)-1].Time.Sub(r.Time)
			t.Logf("%d calls, over %s after the limit", record.PayloadOf[record.BridgeModelCall](r).Call, took)
			if took > 30*time.Second {
				t.Errorf("the agent went on for %s", took)
			}
			return
		}
	}
	t.Error("no request has reached the limit")
}

// checkAgentRequests checks that a model was asked with the instruction and the key, and
// that no agent showed the key to it.
func checkAgentRequests(t *testing.T, requests []mockmodel.Request) {
	t.Helper()
	quoted, told := mustJSON(t, oddInstruction), 0
	for _, r := range requests {
		if strings.Contains(string(r.Body), quoted[1:len(quoted)-1]) {
			told++
		}
		if strings.Contains(string(r.Body), modelKey) {
			t.Errorf("%s has the key in its body", r.Path)
		}
		if key := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + r.Header.Get("X-Goog-Api-Key"); !strings.HasSuffix(key, modelKey) {
			t.Errorf("%s %s has the key %q", r.Method, r.Path, key)
		}
	}
	if told < 3 {
		t.Errorf("%d of %d requests have the instruction", told, len(requests))
	}
}
