package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/tools/egress/egresstest"
)

// batchImage makes an image on the engine for tasks of batches.
func batchImage(t *testing.T) string {
	return engineImage(t, userland(t, "sleep", "rm", "chmod"), "ENV PATH=/bin")
}

// harborTask writes a Harbor task that asks for hello.txt. What the engine builds for it is
// removed with the test. It has a label of its own, or the engine's cache would share it with
// a test beside this one, which removes it.
func (m *machine) harborTask(t *testing.T, name, image, toml, solution string) {
	t.Helper()
	builtName(t, filepath.Join(m.workspace, "tasks", name, "environment"))
	for file, text := range map[string]string{
		"task.toml": toml, "instruction.md": "Write hello to hello.txt.\n", "environment/Dockerfile": "FROM " + image + "\nLABEL test=" + m.workspace + "\nWORKDIR /app\nRUN echo given > given\n",
		"solution/solve.sh": "#!/bin/sh\n" + solution + "\n",
		"tests/test.sh":     "#!/bin/sh\nread a < hello.txt; read b < given\nif [ \"$a$b\" = hellogiven ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
	} {
		m.write(t, filepath.Join("tasks", name, file), text)
	}
}

const smallTask = "version = \"1.0\"\n[environment]\nmemory = \"256M\"\nstorage = \"1G\"\n"

// batch runs a batch of the machine's tasks into out.
func (m *machine) batch(t *testing.T, args ...string) outcome {
	t.Helper()
	return m.run(t, m.batchArgs("out", args...)...)
}

func (m *machine) batchArgs(out string, args ...string) []string {
	return slices.Concat([]string{"batch", "--out", m.batchDir(out)}, args, []string{filepath.Join(m.workspace, "tasks")})
}

func (m *machine) batchDir(out string) string { return filepath.Join(m.home, out) }

// results returns the outcomes of a batch by the name of the trial, and the sessions.
func (m *machine) results(t *testing.T, out string) (outcomes map[string]string, sessions []string) {
	t.Helper()
	list, err := batch.ReadResults(m.batchDir(out))
	if err != nil {
		t.Fatal(err)
	}
	outcomes = map[string]string{}
	for _, r := range list {
		name := fmt.Sprintf("%s %s %d", r.Task, r.Agent, r.Attempt)
		if _, twice := outcomes[name]; twice {
			t.Errorf("%s has two results", name)
		}
		outcomes[name] = string(r.Outcome)
		sessions = append(sessions, r.Sessions...)
	}
	return outcomes, sessions
}

// TestBatch runs Harbor tasks from their Dockerfiles: the oracle passes, nop does not, a
// second run does nothing, a second verification has the same verdicts, and what can't be
// run is found before anything is.
func TestBatch(t *testing.T) {
	needBackend(t, "docker")
	t.Parallel()
	image := batchImage(t)
	for _, backend := range sandboxtest.Sampled(t, "gvisor", "runc") {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			needBackend(t, backend)
			m := newMachine(t)
			m.harborTask(t, "hello", image, smallTask, "echo hello > hello.txt")
			m.harborTask(t, "gpu", image, "[environment]\ngpus = 1\n", "true")
			args := []string{"--backend", backend, "--agent", "oracle", "--agent", "nop"}
			refused := m.batch(t, args...)
			refused.want(t, 42)
			if !strings.Contains(refused.stderr, "unsupported: gpu: GPUs (1)") {
				t.Error(refused.stderr)
			}
			if _, err := os.Stat(filepath.Join(m.batchDir("out"), batch.ResultsFile)); err == nil {
				t.Error("a refused batch has results")
			}
			args = append(args, "--skip-unsupported")
			m.batch(t, args...).want(t, 60)
			want := map[string]string{"hello oracle 1": "passed", "hello nop 1": "failed"}
			got, sessions := m.results(t, "out")
			if fmt.Sprint(got) != fmt.Sprint(want) || len(sessions) != 4 {
				t.Errorf("%v, sessions %v", got, sessions)
			}
			m.wantNothingLeft(t, sessions...)
			before := readFile(t, filepath.Join(m.batchDir("out"), batch.ResultsFile))
			m.batch(t, args...).want(t, 60)
			if after, err := os.ReadFile(filepath.Join(m.batchDir("out"), batch.ResultsFile)); err != nil || string(after) != string(before) {
				t.Errorf("the second run changed the results: %v", err)
			}
			graded := m.run(t, "batch", "grade", "--backend", backend, m.batchDir("out"), filepath.Join(m.workspace, "tasks"))
			graded.want(t, 0)
			if !strings.Contains(graded.stdout, "2 verdicts are the same, 0 differ") || strings.Contains(graded.stderr, "changed") {
				t.Error(graded.stdout, graded.stderr)
			}
			m.write(t, "tasks/hello/tests/test.sh", "echo 0.5 > /logs/verifier/reward.txt\n")
			graded = m.run(t, "batch", "grade", "--backend", backend, m.batchDir("out"), filepath.Join(m.workspace, "tasks"))
			graded.want(t, 60)
			if !strings.Contains(graded.stdout, "was passed (1), is failed (0.5)") || !strings.Contains(graded.stdout, "was failed (0), is failed (0.5)") ||
				!strings.Contains(graded.stderr, "changed since the trials: hello") {
				t.Error(graded.stdout, graded.stderr)
			}
			m.batch(t, args...).want(t, 42) // the task is another one
			var summary batch.Summary
			if err := json.Unmarshal([]byte(m.run(t, "batch", "show", "--json", m.batchDir("out")).stdout), &summary); err != nil || len(summary.Agents) != 2 || len(summary.Unsupported) != 1 || summary.Created.IsZero() {
				t.Errorf("%+v, %v", summary, err)
			}
			entries, err := os.ReadDir(m.batchDir("out"))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if !slices.Contains([]string{"batch.json", "grades", "junit.xml", "lock", "report.html", "results.jsonl", "summary.json", "trials"}, e.Name()) {
					t.Errorf("%s is left", e.Name())
				}
			}
		})
	}
}

// TestBatchLines runs lines of JSON with models, in shards, merges them, and compares the
// models. Commands have a variable that the command line names, and none of the user's file.
func TestBatchLines(t *testing.T) {
	needBackend(t, "gvisor")
	t.Parallel()
	m := newMachine(t)
	m.write(t, "tasks/repo/file", "before\n")
	var lines strings.Builder
	for i := range 7 {
		fmt.Fprintf(&lines, `{"id":"fix-%d","prompt":"Fix it.","workspace":"repo","verify":"grep -q after file"}`+"\n", i)
	}
	m.write(t, "tasks/tasks.jsonl", lines.String())
	m.write(t, "good.yaml", "version: 1\nname: good\nturns:\n  - text: I fix it.\n    calls:\n      - tool: shell\n        input: {command: 'test -z \"$CONFIGURED\" && test \"$NAMED\" = named && echo after > file'}\n  - text: Done.\n")
	m.config(t, "env_from: [CONFIGURED]\nfetch: {allow: [\"https://example.com/\"]}\n")
	m.env = append(m.env, "CONFIGURED=configured", "NAMED=named")
	m.write(t, "bad.yaml", "version: 1\nname: bad\nturns:\n  - text: Done.\n")
	good, bad := "replay/"+filepath.Join(m.workspace, "good.yaml"), "replay/"+filepath.Join(m.workspace, "bad.yaml")
	var dirs []string
	for i := 1; i <= 2; i++ {
		dir := m.batchDir(fmt.Sprint("shard", i))
		args := []string{"batch", "--backend", "gvisor", "--model", good, "--model", bad, "--out", dir, "--shard", fmt.Sprintf("%d/2", i), "-e", "NAMED"}
		if i == 2 {
			args = append(args, "--fetch-allow", "https://example.com/")
		}
		m.run(t, append(args, filepath.Join(m.workspace, "tasks/tasks.jsonl"))...).want(t, 60)
		traces, err := filepath.Glob(filepath.Join(dir, batch.TrialsDir, "*", batch.SessionDir, record.TraceFile))
		if err != nil || len(traces) == 0 {
			t.Fatal(traces, err)
		}
		for _, trace := range traces {
			if fetches := strings.Contains(string(readFile(t, trace)), `"name":"fetch"`); fetches != (i == 2) {
				t.Errorf("shard %d: the model can fetch: %t", i, fetches)
			}
		}
		dirs = append(dirs, dir)
	}
	m.run(t, append([]string{"batch", "merge", "--out", m.batchDir("merged")}, dirs...)...).want(t, 0)
	got, sessions := m.results(t, "merged")
	if len(got) != 14 {
		t.Errorf("%d results: %v", len(got), got)
	}
	for name, outcome := range got {
		if want := map[bool]string{true: "passed", false: "failed"}[strings.Contains(name, "good")]; outcome != want {
			t.Errorf("%s: %s", name, outcome)
		}
	}
	m.wantNothingLeft(t, sessions...)
	compared := m.run(t, "batch", "compare", m.batchDir("merged")+":"+bad, m.batchDir("merged")+":"+good)
	compared.want(t, 0)
	if !strings.HasPrefix(compared.stdout, good+" is better than "+bad+" by 100.0 points on 7 tasks") {
		t.Error(compared.stdout)
	}
	predictions, err := filepath.Glob(filepath.Join(m.batchDir("shard1"), "predictions-*good.yaml.jsonl"))
	if err != nil || len(predictions) != 1 {
		t.Fatalf("%v, %v", predictions, err)
	}
	if text, err := os.ReadFile(predictions[0]); err != nil || !strings.Contains(string(text), `+after\n`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestBatchWorkers runs a batch on two workers: the results are in the coordinator's
// directory with all files, the workers end with the batch, and nothing is left.
func TestBatchWorkers(t *testing.T) {
	needBackend(t, "gvisor")
	t.Parallel()
	queue := startQueue(t, &natsserver.Options{})
	m := newMachine(t)
	m.write(t, "tasks/repo/file", "before\n")
	var lines strings.Builder
	for i := range 4 {
		fmt.Fprintf(&lines, `{"id":"fix-%d","prompt":"Fix it.","workspace":"repo","verify":"grep -q after file"}`+"\n", i)
	}
	m.write(t, "tasks/tasks.jsonl", lines.String())
	m.write(t, "good.yaml", "version: 1\nname: good\nturns:\n  - text: I fix it.\n    calls:\n      - tool: shell\n        input: {command: echo after > file}\n  - text: Done.\n")
	good, tasks := "replay/"+filepath.Join(m.workspace, "good.yaml"), filepath.Join(m.workspace, "tasks/tasks.jsonl")

	refused := m.run(t, "batch", "--nats", queue.ClientURL(), "--model", good, "--out", m.batchDir("refused"), tasks)
	refused.want(t, 2)
	if !strings.Contains(refused.stderr, "only names of trials go through NATS") {
		t.Error(refused.stderr)
	}
	place := []string{"--nats", queue.ClientURL(), "--results", filepath.Join(m.home, "store")}
	var workers []*running
	for i := range 2 {
		workers = append(workers, m.start(t, slices.Concat([]string{"batch", "worker", "--out", m.batchDir(fmt.Sprint("worker", i)), "--parallel", "1"}, place)...))
	}
	m.run(t, slices.Concat([]string{"batch", "--backend", "gvisor", "--model", good, "--out", m.batchDir("out")}, place, []string{tasks})...).want(t, 0)
	for _, w := range workers {
		w.wait(t, time.Minute).want(t, 0)
	}
	got, sessions := m.results(t, "out")
	if len(got) != 4 || len(sessions) < 4 {
		t.Errorf("%v, sessions %v", got, sessions)
	}
	for name, outcome := range got {
		if outcome != "passed" {
			t.Errorf("%s: %s", name, outcome)
		}
	}
	trials, err := filepath.Glob(filepath.Join(m.batchDir("out"), batch.TrialsDir, "*", batch.AgentDir, batch.TrajectoryFile))
	if err != nil || len(trials) != 4 {
		t.Errorf("trajectories: %v, %v", trials, err)
	}
	m.wantNothingLeft(t, sessions...)
	for i := range 2 {
		if entries, err := os.ReadDir(m.batchDir(fmt.Sprint("worker", i))); err != nil || len(entries) > 1 { // the lock
			t.Errorf("worker %d leaves %v, %v", i, entries, err)
		}
	}
}

// hostProbes asks hosts by curl in all ways, and prints the answers. Those called fronted
// reach for evil.test by a connection to good.test.
const hostProbes = `
probe() { name=$1; shift; if out=$(curl -fsSk -m 20 "$@" 2>/dev/null); then echo "$name: $out"; else echo "$name: failed"; fi; }
probe tls https://good.test/
probe tls-captured --noproxy '*' https://good.test/
probe tls-below https://a.wild.test/
probe tls-not-below https://wild.test/
probe denied https://denied.wild.test/
probe http http://good.test/
probe http-captured --noproxy '*' http://good.test/
probe http-post -d x http://good.test/
probe evil https://evil.test/
probe evil-http http://evil.test/
probe address https://93.184.216.34/
probe fronted-tls --connect-to evil.test:443:good.test:443 https://evil.test/
probe fronted-tls-captured --noproxy '*' --connect-to evil.test:443:good.test:443 https://evil.test/
probe fronted-http -H 'Host: evil.test' http://good.test/
probe fronted-http-tunnel -p -H 'Host: evil.test' http://good.test/
probe fronted-http-captured --noproxy '*' -H 'Host: evil.test' http://good.test/
probe fronted-http-kept --noproxy '*' http://good.test/ --next -fsSk -m 20 --noproxy '*' -H 'Host: evil.test' http://good.test/
probe no-name --connect-to 93.184.216.34:443:good.test:443 https://93.184.216.34/
probe fronted-other-port -p -H 'Host: evil.test' http://good.test:8081/
`

// TestBatchCheck: tasks are sound if the oracle passes and nop doesn't. Others are named with the
// files to look at.
func TestBatchCheck(t *testing.T) {
	needBackend(t, "docker")
	needBackend(t, "runc")
	t.Parallel()
	image := batchImage(t)
	m := newMachine(t)
	tmp := t.TempDir()
	m.env = append(m.env, "TMPDIR="+tmp)
	m.harborTask(t, "sound", image, smallTask, "echo hello > hello.txt")
	check := func(task string) outcome {
		return m.run(t, "batch", "check", "--backend", "runc", filepath.Join(m.workspace, "tasks", task))
	}
	sound := check("sound")
	sound.want(t, 0)
	if sound.stdout != "1 of 1 tasks are sound\n" {
		t.Error(sound.stdout)
	}
	m.harborTask(t, "wrong", image, smallTask, "echo good-bye > hello.txt")
	m.harborTask(t, "broken", image, smallTask, "echo hello > hello.txt; echo a reason; exit 3")
	m.write(t, "tasks/broken/tests/test.sh", "[ -e /app/absent ] && reward=1\necho ${reward:-0} > /logs/verifier/reward.txt\n")
	m.harborTask(t, "easy", image, smallTask, "true")
	m.write(t, "tasks/easy/tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n")
	alone := check("wrong")
	alone.want(t, 60)
	if !strings.Contains(alone.stdout, "0 of 1 tasks are sound") {
		t.Error(alone.stdout)
	}
	out := m.batchDir("checked")
	all := m.run(t, "batch", "check", "--backend", "runc", "--out", out, filepath.Join(m.workspace, "tasks"))
	all.want(t, 60)
	lines := strings.Split(strings.TrimSpace(all.stdout), "\n")
	if len(lines) != 5 || lines[4] != "1 of 4 tasks are sound" {
		t.Fatal(all.stdout)
	}
	causes := map[string]string{"wrong": "oracle: failed, reward 0", "broken": "oracle: failed, reward 0, solution_failed: solve.sh: exit code 3", "easy": "nop: passed, reward 1"}
	for _, line := range lines[1:4] {
		fields := strings.Fields(line)
		if cause := causes[fields[0]]; cause == "" || !strings.Contains(line, cause) {
			t.Errorf("%q", line)
		}
		text, err := os.ReadFile(fields[len(fields)-1])
		if err != nil || fields[0] == "broken" && string(text) != "a reason\n" {
			t.Errorf("%s: %q, %v", line, text, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "caisson-check-*")); err != nil || len(left) != 1 {
		t.Errorf("temporary directories: %v, %v", left, err)
	}
}

// TestBatchHosts: of allowed hosts, TLS at port 443 and requests at port 80 must name the
// host that is connected to, in the agent's and in the verifier's phase. The control is a
// task with a public network, in which each name reaches its server by another's connection.
func TestBatchHosts(t *testing.T) {
	if !egresstest.InNamespace() {
		needBackend(t, "docker")
		t.Parallel()
		egresstest.Run(t, len(backendNames)-1, "E2E_BIN="+binaries(t))
		return
	}
	hosts := map[string]http.Handler{}
	for _, name := range []string{"good.test", "a.wild.test", "denied.wild.test", "wild.test", "evil.test", egresstest.PublicAddr} {
		hosts[name] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name+" ") })
	}
	n := egresstest.StartInternet(t, hosts)
	other, err := net.Listen("tcp", net.JoinHostPort(egresstest.PublicAddr, "8081"))
	if err != nil {
		t.Fatal(err)
	}
	plain := &http.Server{Handler: n}
	go func() { _ = plain.Serve(other) }()
	t.Cleanup(func() { _ = plain.Close() })
	// Nothing is built: an engine sees no mounts of the namespace.
	image := engineImage(t, userland(t, "curl", "chmod"), "ENV PATH=/bin", "WORKDIR /app")
	agent := `tls: good.test 
tls-captured: good.test 
tls-below: a.wild.test 
tls-not-below: failed
denied: failed
http: good.test 
http-captured: good.test 
http-post: good.test 
evil: failed
evil-http: failed
address: failed
fronted-tls: failed
fronted-tls-captured: failed
fronted-http: failed
fronted-http-tunnel: failed
fronted-http-captured: failed
fronted-http-kept: failed
no-name: failed
fronted-other-port: evil.test 
`
	for _, backend := range []string{"gvisor", "runc"} {
		t.Run(backend, func(t *testing.T) {
			if err := probeBackend(t, backend); err != nil {
				if strings.Contains(os.Getenv("REQUIRE_BACKENDS"), backend) {
					t.Fatal(err)
				}
				t.Logf("needs %s: %v", backend, err)
				return
			}
			m := newMachine(t)
			m.config(t, "egress: {deny: [\"host://denied.wild.test\"]}\n") // of the operator
			tasks := map[string]string{
				"hosts": "[agent]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"good.test\", \"*.wild.test\"]\n[verifier]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"evil.test\"]\n",
			}
			if backend == "runc" {
				tasks["public"] = ""
			}
			for name, toml := range tasks {
				m.harborTask(t, name, image, "", "")
				m.write(t, filepath.Join("tasks", name, "task.toml"), smallTask+"docker_image = \""+image+"\"\n"+toml)
				m.write(t, filepath.Join("tasks", name, "solution/solve.sh"), "#!/bin/sh\n{"+hostProbes+"} > /logs/agent/answers\n")
				m.write(t, filepath.Join("tasks", name, "tests/test.sh"), "#!/bin/sh\n"+hostProbes+"echo 1 > /logs/verifier/reward.txt\n")
			}
			m.batch(t, "--backend", backend, "--agent", "oracle").want(t, 0)
			list, err := batch.ReadResults(m.batchDir("out"))
			if err != nil || len(list) != len(tasks) {
				t.Fatalf("%+v, %v", list, err)
			}
			for _, r := range list {
				read := func(elem ...string) string {
					text, err := os.ReadFile(filepath.Join(append([]string{m.batchDir("out"), "trials", r.Key.Name()}, elem...)...))
					if err != nil {
						t.Error(err)
					}
					return string(text)
				}
				answers, verified := read("agent", "answers"), read("verifier", "test-stdout.txt")
				if r.Task == "public" {
					if !strings.Contains(answers, "denied: failed\n") || !strings.Contains(answers, "tls-below: a.wild.test ") {
						t.Errorf("what the operator denies\n%s", answers)
					}
					for _, reached := range []string{"fronted-tls", "fronted-tls-captured", "fronted-http-tunnel", "fronted-http-captured"} {
						if !strings.Contains(answers, reached+": evil.test ") || !strings.Contains(verified, reached+": evil.test ") {
							t.Errorf("control: %s is refused\n%s\n%s", reached, answers, verified)
						}
					}
					continue
				}
				if answers != agent {
					t.Errorf("the agent got\n%s", answers)
				}
				if strings.Count(verified, "failed") != len(strings.Split(agent, "\n"))-1-2 || !strings.Contains(verified, "evil: evil.test ") || !strings.Contains(verified, "evil-http: evil.test ") {
					t.Errorf("the verifier got\n%s", verified)
				}
				if records := read("session", "trace.jsonl"); !strings.Contains(records, `"host://*.wild.test"`) {
					t.Error("the rules of the agent are not in its records")
				}
			}
		})
	}
}
