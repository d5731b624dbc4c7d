package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// forgingAgent asks its model, does the task if that answered, and then writes what it would
// have liked to have said to wherever records could be read from.
const forgingAgent = askModel + `
ask "$ENDPOINT" "$BODY" >/tmp/answer
grep -q "the real answer" /tmp/answer && echo hello >hello.txt
for dir in /logs/agent ~/.claude/projects ~/.codex/sessions /agent; do
	mkdir -p $dir
	for file in trajectory.json trace.jsonl bridge.jsonl session.jsonl; do echo "{\"$(echo for)ged\":true}" >$dir/$file; done
done
echo "$HOME $(cat ~/.mine)" >/logs/agent/home
`

// harborAgents are the agents of forgingAgent: one of the image, and one of a directory of
// this machine.
func (m *machine) harborAgents(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(m.home, "theirs")
	writeFile(t, filepath.Join(dir, "agent"), "#!/bin/bash\n"+forgingAgent, 0o755)
	const more = "    models: {\"*\": %s}\n    files: {.mine: \"{{model}} {{home}} {{instruction}}\"}\n    env: {URL: \"{{base_url}}\", ENDPOINT: %s, BODY: %s}\n"
	return "  mine:\n    image: true\n    protocol: anthropic\n    command: [bash, -c, " + mustJSON(t, forgingAgent) + "]\n" +
		fmt.Sprintf(more, "anthropic", "/v1/messages", mustJSON(t, `{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"the real question"}]}`)) +
		"  theirs:\n    dir: " + dir + "\n    protocol: responses\n    command: [agent]\n" +
		fmt.Sprintf(more, "responses", "/v1/responses", mustJSON(t, `{"model":"m","input":"the real question"}`))
}

// agentsTask writes a task that asks for hello.txt. Its tests fail if they can ask a model.
func (m *machine) agentsTask(t *testing.T, name, image, toml string) {
	t.Helper()
	m.harborTask(t, name, image, toml, "echo hello > hello.txt")
	m.write(t, filepath.Join("tasks", name, "tests/test.sh"), `#!/bin/sh
read a < hello.txt || exec echo 0 > /logs/verifier/reward.txt
ask() { curl -sS -f -m 5 "$@"; }
ask http://model.caisson.internal/v1/models && a=reached
for proxy in $http_proxy http://127.80.0.1:61080 http://127.80.0.2:61080; do
	ask -x $proxy http://model.caisson.internal/v1/messages -d '{"model":"m","max_tokens":9,"messages":[]}' && a=reached
done
if [ "$a" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
`)
}

// answering are a model's answers for an agent that makes a call, in two trials.
func answering(tool, args string) *mockmodel.Model {
	trial := []mockmodel.Step{{Calls: []mockmodel.Call{{Name: tool, Arguments: args}}}, {Text: "the real answer"}}
	return &mockmodel.Model{Side: &mockmodel.Step{Text: "Title"}, Steps: slices.Concat(trial, trial)}
}

// TestAgentsOnHarborTasks has one batch with agents that are programs, Caisson's own, the
// solution and nothing. All that work pass, without a network too; their costs are in one
// summary, and their trajectories are what the bridge has seen. The verifiers can't ask models.
func TestAgentsOnHarborTasks(t *testing.T) {
	needBackend(t, "docker") // it builds the image
	t.Parallel()
	files := userland(t, "bash", "curl", "grep")
	files["root/.profile"] = nil
	image := engineImage(t, files, "ENV PATH=/bin")
	for _, backend := range sandboxtest.Sampled(t, "gvisor", "runc") {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			needBackend(t, backend)
			m := newMachine(t)
			m.agentsTask(t, "offline", image, smallTask+"allow_internet = false\n")
			m.agentsTask(t, "online", image, smallTask)
			asked := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "the real answer"}}}
			address, own := serveModel(t, asked), serveModel(t, answering("shell", `{"command":"echo hello > hello.txt"}`))
			m.configureModels(t, func(model string) string { return map[bool]string{true: own, false: address}[model == "chat"] }, m.harborAgents(t))
			m.batch(t, "--backend", backend, "--agent", "mine", "--agent", "theirs", "--model", "chat", "--agent", "oracle", "--agent", "nop", "--parallel", "1").want(t, 60)
			results := m.wantBatch(t, []string{"mine", "theirs", "chat"}, []string{"oracle"})
			if n := len(asked.Requests()); n != 4 {
				t.Errorf("%d requests have reached the model, want one of each trial: %+v", n, asked.Requests())
			}
			for _, r := range results {
				if !slices.Contains([]string{"mine", "theirs"}, r.Agent) {
					continue
				}
				dir := filepath.Join(m.batchDir("out"), "trials", r.Name)
				read := func(elem ...string) string {
					text, err := os.ReadFile(filepath.Join(append([]string{dir}, elem...)...))
					if err != nil {
						t.Error(err)
					}
					return string(text)
				}
				if home := read("agent", "home"); !strings.HasPrefix(home, "/root model-1 /root Write hello") {
					t.Errorf("%s: the home is %q", r.Name, home)
				}
				if !strings.Contains(read("agent", "bridge.jsonl"), "forged") {
					t.Errorf("%s: control: the agent has forged nothing", r.Name)
				}
				for _, file := range []string{"agent/trajectory.json", "session/trace.jsonl", "session/bridge.jsonl"} {
					if text := read(file); strings.Contains(text, "forged") || !strings.Contains(text, "the real question") || !strings.Contains(text, "the real answer") {
						t.Errorf("%s: %s has %.5000s", r.Name, file, text)
					}
				}
			}
			compared := m.run(t, "batch", "compare", m.batchDir("out")+":mine", m.batchDir("out")+":nop")
			compared.want(t, 0)
			if !strings.Contains(compared.stdout, "better on 2, worse on 0") {
				t.Error(compared.stdout)
			}
		})
	}
}

// wantBatch checks a batch: all agents but nop pass, those with a model have a cost in the
// summary, and all trajectories fit the schema. It returns the results.
func (m *machine) wantBatch(t *testing.T, asking, others []string) []batch.Result {
	t.Helper()
	results, err := batch.ReadResults(m.batchDir("out"))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "runner", "trace", "testdata", "atif-v1.7.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		want := batch.Passed
		if r.Agent == batch.Nop {
			want = batch.Failed
		}
		if r.Outcome != want {
			t.Errorf("%s of %s: %s, want %s: %s %s", r.Agent, r.Task, r.Outcome, want, r.Class, r.Cause)
		}
		f, err := os.Open(filepath.Join(m.batchDir("out"), "trials", r.Name, "agent", "trajectory.json"))
		if err != nil {
			t.Error(err)
			continue
		}
		doc, err := jsonschema.UnmarshalJSON(f)
		_ = f.Close()
		if err == nil {
			err = schema.Validate(doc)
		}
		if err != nil {
			t.Errorf("%s of %s: %v", r.Agent, r.Task, err)
		}
		m.wantNothingLeft(t, r.Sessions...)
	}
	summary := parse[batch.Summary](t, m.run(t, "batch", "show", "--json", m.batchDir("out")).stdout)
	var seen []string
	for _, a := range summary.Agents {
		seen = append(seen, a.Agent)
		if asks := slices.Contains(asking, a.Agent); asks != (a.Usage.Tokens() > 0) || asks != (a.CostUSD != "") || a.CostUnknown > 0 {
			t.Errorf("the summary of %s: %+v, cost %q, unknown %d", a.Agent, a.Usage, a.CostUSD, a.CostUnknown)
		}
	}
	want := slices.Concat(asking, others, []string{batch.Nop})
	slices.Sort(want)
	slices.Sort(seen)
	if !slices.Equal(seen, want) {
		t.Errorf("the summary has %v, want %v", seen, want)
	}
	return results
}

// realAgentsBatch is TestAgentsOnHarborTasks with Claude Code and Codex.
func realAgentsBatch(t *testing.T, bin string) {
	needBackend(t, "docker")
	files := userland(t, "bash", "curl", "grep", "env", "cp", "mv", "rm", "chmod", "find", "sed", "head", "tail", "wc", "uname", "dirname", "basename", "sleep", "git")
	files["root/.profile"], files["tmp/.keep"] = nil, nil
	claude, err := filepath.Glob(filepath.Join(filepath.Dir(bin), "@anthropic-ai", "claude-code-linux-*", "claude"))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range claude {
		for _, library := range libraries(t, program) {
			if files[strings.TrimPrefix(library, "/")], err = os.ReadFile(library); err != nil {
				t.Fatal(err)
			}
		}
	}
	image := engineImage(t, files, "ENV PATH=/bin")
	for _, backend := range sandboxtest.Sampled(t, "gvisor", "runc") {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			m := newMachine(t)
			m.env[0] = "PATH=" + bin + ":" + hostPath
			m.agentsTask(t, "offline", image, "version = \"1.0\"\n[environment]\nmemory = \"2G\"\nstorage = \"2G\"\nallow_internet = false\n")
			address := map[string]string{
				"anthropic": serveModel(t, answering("Write", `{"file_path":"/app/hello.txt","content":"hello\n"}`)),
				"responses": serveModel(t, answering("exec_command", `{"cmd":"echo hello >hello.txt"}`)),
				"chat":      serveModel(t, answering("shell", `{"command":"echo hello > hello.txt"}`)),
			}
			m.configureModels(t, func(model string) string { return address[model] }, "  claude: {}\n")
			out := m.batch(t, "--backend", backend, "--agent", "claude@anthropic", "--agent", "codex@responses", "--model", "chat", "--agent", "oracle", "--agent", "nop")
			out.want(t, 60)
			m.wantBatch(t, []string{"claude@anthropic", "codex@responses", "chat"}, []string{"oracle"})
			t.Log(out.stdout)
		})
	}
}
