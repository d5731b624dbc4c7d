package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fleetTrials names the number of trials of TestBatchFleet, to run it for longer, against a
// batch that nothing disturbs and one of three shards.
const fleetTrials = "CAISSON_FLEET_TRIALS"

// fleetTasks writes n tasks, of which two thirds pass, and returns the path of their file and
// the outcomes. The agent takes as long as the variable DELAY names, in seconds.
func (m *machine) fleetTasks(t *testing.T, n int) (tasks, model string, want map[string]string) {
	t.Helper()
	m.write(t, "tasks/repo/file", "before\n")
	m.write(t, "good.yaml", "version: 1\nname: good\nturns:\n  - text: I fix it.\n    calls:\n      - tool: shell\n        input: {command: 'sleep ${DELAY:-0.2}; echo after > file'}\n  - text: Done.\n")
	model, want = "replay/"+filepath.Join(m.workspace, "good.yaml"), map[string]string{}
	var lines strings.Builder
	for i := range n {
		word, outcome := "after", "passed"
		if i%3 == 0 {
			word, outcome = "never", "failed"
		}
		fmt.Fprintf(&lines, `{"id":"fix-%d","prompt":"Fix it.","workspace":"repo","verify":"grep -q %s file"}`+"\n", i, word)
		want[fmt.Sprintf("fix-%d %s 1", i, model)] = outcome
	}
	m.write(t, "tasks/tasks.jsonl", lines.String())
	return filepath.Join(m.workspace, "tasks/tasks.jsonl"), model, want
}

// wantResults holds the results of a batch against what they must be.
func (m *machine) wantResults(t *testing.T, out string, want map[string]string) {
	t.Helper()
	got, sessions := m.results(t, out)
	if !maps.Equal(got, want) {
		t.Errorf("%s: got  %v\nwant %v", out, got, want)
	}
	m.wantNothingLeft(t, sessions...)
}

// TestBatchFleet runs a batch on three workers and three NATS servers, each in a network
// namespace of its own. A worker and a server are killed, the whole queue is deleted, and a
// worker is cut off until others have run its trial. The results are those of one machine,
// each once.
func TestBatchFleet(t *testing.T) {
	needBackend(t, "gvisor")
	t.Parallel()
	n := 12
	if text := os.Getenv(fleetTrials); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	const timeout = 3 * time.Second
	hub := newNetwork(t)
	var hosts []*host
	for i := range 7 {
		hosts = append(hosts, hub.join(i+1))
	}
	servers, urls := startNATS(t, hosts[:3]...)
	m := newMachine(t)
	tasks, model, want := m.fleetTasks(t, n)
	place := []string{"--nats", urls, "--results", filepath.Join(m.home, "store")}
	work := func(i int, delay string) *running {
		own := *m
		own.env = append(slices.Clone(m.env), "DELAY="+delay)
		return hosts[3+i].start(&own, slices.Concat([]string{"batch", "worker", "--out", m.batchDir(fmt.Sprint("worker", i)), "--parallel", "1", "--env-from", "DELAY"}, place)...)
	}
	js := awaitNATS(t, hosts[6], urls)
	begun := time.Now()
	workers := []*running{work(0, "0.2"), work(1, "15"), work(2, "0.2")}
	coordinator := hosts[6].start(m, slices.Concat([]string{"batch", "--backend", "gvisor", "--model", model, "--out", m.batchDir("out"), "--worker-timeout", timeout.String()}, place, []string{tasks})...)

	var cut string
	eventually(t, "the slow worker has a trial", time.Minute, func() bool {
		list, err := filepath.Glob(filepath.Join(m.batchDir("worker1"), "work", "trials", "*"))
		if err == nil && len(list) == 1 {
			cut = filepath.Base(list[0])
		}
		return cut != ""
	})
	hosts[4].setLink("down")
	cutAt := time.Now()
	object := filepath.Join(m.home, "store", "trials", cut+".tar.gz")
	var first [sha256.Size]byte
	eventually(t, "another worker runs the trial of the one that is cut off", 2*time.Minute, func() bool {
		text, err := os.ReadFile(object)
		first = sha256.Sum256(text)
		return err == nil
	})
	if d := time.Since(cutAt); d < timeout/2 {
		t.Errorf("another worker ran the trial within %s", d)
	}
	hosts[4].setLink("up")

	workers[2].kill(t)
	workers[2] = work(2, "0.2")
	name := findStream(t, js)
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo()
	if info.Config.Replicas != 3 || info.Config.Retention != jetstream.WorkQueuePolicy {
		t.Errorf("%+v", info.Config)
	}
	if err := js.DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := servers[info.Cluster.Leader].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	atFaults, _ := m.results(t, "out")

	ended := coordinator.wait(t, 10*time.Minute)
	ended.want(t, 60)
	took := time.Since(begun)
	for i, w := range workers {
		out := w.wait(t, time.Minute)
		out.want(t, 0)
		if late := strings.Contains(out.stderr, "has a result already, which counts"); i == 1 && !late {
			t.Errorf("the late result of the worker that was cut off:\n%s", out.stderr)
		}
	}
	if text, err := os.ReadFile(object); err != nil || sha256.Sum256(text) != first {
		t.Errorf("the first result of %s has changed: %v", cut, err)
	}
	claims, err := os.ReadDir(filepath.Join(m.home, "store", "claims"))
	if err != nil {
		t.Fatal(err)
	}
	if took > time.Minute {
		t.Logf("slow:\n%s", ended.stderr)
	}
	t.Logf("%d trials in %s, %d of them began again; %d results at the faults", n, took.Round(time.Second/10), len(claims)-n, len(atFaults))
	if len(atFaults) == n {
		t.Error("the batch ended before the faults")
	}
	m.wantResults(t, "out", want)
	if n > 12 {
		m.compareWithOne(t, tasks, model, want)
	}
}

// compareWithOne runs the batch on one machine, and in three shards that are merged.
func (m *machine) compareWithOne(t *testing.T, tasks, model string, want map[string]string) {
	t.Helper()
	args := []string{"batch", "--backend", "gvisor", "--model", model, tasks}
	m.run(t, append(args, "--out", m.batchDir("one"))...).want(t, 60)
	m.wantResults(t, "one", want)
	merge := []string{"batch", "merge", "--out", m.batchDir("merged")}
	for i := 1; i <= 3; i++ {
		dir := m.batchDir(fmt.Sprint("shard", i))
		m.run(t, append(args, "--out", dir, "--shard", fmt.Sprint(i, "/3"))...).want(t, 60)
		merge = append(merge, dir)
	}
	m.run(t, merge...).want(t, 0)
	m.wantResults(t, "merged", want)
}

// TestBatchWorkerRefuses: a worker whose results could not be compared with those of others
// ends before its first trial, and names what differs.
func TestBatchWorkerRefuses(t *testing.T) {
	needBackend(t, "gvisor")
	t.Parallel()
	queue := startQueue(t, &natsserver.Options{})
	m := newMachine(t)
	tasks, model, _ := m.fleetTasks(t, 2)
	store := filepath.Join(m.home, "store")
	coordinator := m.start(t, "batch", "--backend", "gvisor", "--model", model, "--out", m.batchDir("out"), "--nats", queue.ClientURL(), "--results", store, tasks)
	described := filepath.Join(store, "runs", "000001")
	eventually(t, "the run has begun", time.Minute, func() bool {
		_, err := os.Stat(described)
		return err == nil
	})
	coordinator.cancel()
	<-coordinator.ended
	text := readFile(t, described)
	version := regexp.MustCompile(`"version":"[^"]*"`).FindString(string(text))
	for name, c := range map[string]struct {
		old, replacement string
		status           int
		want             string
	}{
		"another version":         {version, `"version":"v0.0.1"`, 52, "the coordinator is caisson v0.0.1"},
		"another backend":         {`"backend":"gvisor"`, `"backend":"docker"`, 52, `the backend is "gvisor" here, and "docker" for the coordinator`},
		"another image":           {`"image":"host"`, `"image":"debian:12"`, 52, `the image is "host" here, and "debian:12" for the coordinator`},
		"another task":            {`"checksum":"sha256:`, `"checksum":"sha256:0`, 42, "has checksum"},
		"a task that is not here": {`"id":"fix-1"`, `"id":"fix-9"`, 42, `task "fix-9" of the run is missing here`},
		"a path that is not here": {`tasks.jsonl"]`, `none.jsonl"]`, 42, "none.jsonl"},
		"another model":           {`"agents":["replay/`, `"agents":["nowhere/`, 52, "no provider nowhere"},
		"another schema":          {`"schema_version":1`, `"schema_version":2`, 52, "schema version 2: want 1"},
		"a bucket that is none":   {`"buckets":{"fix-0":`, `"buckets":{"fix-0":9`, 52, "has bucket 9"},
		"text":                    {`{"schema_version"`, `{schema_version`, 52, "read run 000001"},
	} {
		t.Run(name, func(t *testing.T) {
			other := filepath.Join(t.TempDir(), "store")
			changed := strings.Replace(string(text), c.old, c.replacement, 1)
			if changed == string(text) {
				t.Fatalf("%s has no %s", text, c.old)
			}
			if err := errors.Join(os.MkdirAll(filepath.Join(other, "runs"), 0o755), os.WriteFile(filepath.Join(other, "runs", "000001"), []byte(changed), 0o644)); err != nil {
				t.Fatal(err)
			}
			out := m.run(t, "batch", "worker", "--backend", "gvisor", "--out", m.batchDir("worker"), "--nats", queue.ClientURL(), "--results", other)
			out.want(t, c.status)
			if !strings.Contains(out.stderr, c.want) {
				t.Errorf("want %q:\n%s", c.want, out.stderr)
			}
			if claims, err := os.ReadDir(filepath.Join(other, "claims")); err == nil {
				t.Errorf("claims %v", claims)
			}
		})
	}
}

// awaitNATS connects from a host to a cluster, and waits until it keeps three replicas.
func awaitNATS(t *testing.T, from *host, urls string) jetstream.JetStream {
	t.Helper()
	var conn *nats.Conn
	eventually(t, "a connection to NATS", time.Minute, func() (ok bool) {
		var err error
		conn, err = nats.Connect(urls, nats.SetCustomDialer(from), nats.MaxReconnects(-1))
		return err == nil
	})
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "three replicas", time.Minute, func() bool {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "probe", Subjects: []string{"probe"}, Replicas: 3})
		return err == nil && js.DeleteStream(t.Context(), "probe") == nil
	})
	return js
}

// findStream returns the name of the queue.
func findStream(t *testing.T, js jetstream.JetStream) string {
	t.Helper()
	names := js.StreamNames(t.Context())
	var found []string
	for name := range names.Name() {
		found = append(found, name)
	}
	if err := names.Err(); err != nil || len(found) != 1 {
		t.Fatal(found, errors.Join(err, errors.New("want one queue")))
	}
	return found[0]
}
