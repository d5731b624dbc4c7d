package batch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes files below a directory. Files ending in .sh are executable.
func write(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		must(t, os.WriteFile(path, []byte(text), mode))
	}
	return dir
}

type machine struct {
	t       testing.TB
	backend string
	top     string
	// root is a root file system with busybox, and image an archive of an image with
	// it.
	root, image string
	state       string
	host        *caisson.Host
	o           batch.TrialOptions
}

// newMachine returns a machine, or skips the test if the backend is missing.
func newMachine(t testing.TB, backend string) *machine {
	t.Helper()
	batch.MachinesAsked.Add(1)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		skip(t, "busybox is missing")
	}
	top := t.TempDir()
	m := &machine{t: t, backend: backend, top: top, root: filepath.Join(top, "root"), state: filepath.Join(top, "state")}
	write(t, m.root, map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nother:x:1000:1000::/:/bin/sh\n", "etc/group": "root:x:0:\nother:x:1000:\n", "app/given": "given\n", "var/removed": "x", "opt/old": "old"})
	for _, name := range []string{"appended", "mode", "removed", "renamed", "replaced", "link", "kept"} {
		write(t, m.root, map[string]string{"data/" + name + "/deep/file": name + "\n"})
	}
	must(t, os.Symlink("data", filepath.Join(m.root, "srv")))
	for _, dir := range []string{"bin", "root", "tmp", "proc", "dev", "sys"} {
		must(t, os.MkdirAll(filepath.Join(m.root, dir), 0o755))
	}
	program, err := os.ReadFile(busybox)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(m.root, "bin/busybox"), program, 0o755))
	libraries, err := exec.Command("ldd", busybox).Output() // none where it is static
	if err == nil {
		for word := range strings.FieldsSeq(string(libraries)) {
			if filepath.IsAbs(word) {
				text, err := os.ReadFile(word)
				must(t, err)
				must(t, os.MkdirAll(filepath.Join(m.root, filepath.Dir(word)), 0o755))
				must(t, os.WriteFile(filepath.Join(m.root, word), text, 0o755))
			}
		}
	}
	list, err := exec.Command(busybox, "--list").Output()
	must(t, err)
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			must(t, os.Symlink("busybox", filepath.Join(m.root, "bin", name)))
		}
	}
	m.image = filepath.Join(top, "image.tar")
	writeImage(t, m.root, m.image, v1.Config{WorkingDir: "/app", Env: []string{"PATH=/bin", "FROM_IMAGE=yes"}})
	o := caisson.HostOptions{StateDir: m.state, CacheDir: filepath.Join(top, "cache"), Guest: builtProgram(t, "caisson-guest")}
	if backend == "gvisor" {
		o.Runsc = builtProgram(t, "runsc")
	}
	m.host, err = caisson.NewHost(o)
	must(t, err)
	t.Cleanup(func() { must(t, m.host.Close()) })
	chosen, choice, err := m.host.Choose(t.Context(), backend, nil)
	if err != nil {
		skip(t, fmt.Sprintf("%s: %v", backend, err))
	}
	batch.MachinesMade.Add(1)
	store, err := m.host.Images(t.Context())
	must(t, err)
	p, err := policy.Preset("ci")
	must(t, err)
	host, err := images.ParseReference("host")
	must(t, err)
	resources := limits.DefaultResources()
	resources.MemoryBytes = 512 << 20
	m.o = batch.TrialOptions{
		StateDir: m.state, WorkDir: filepath.Join(top, "work"), Images: store, DefaultImage: host, GitEnv: []string{"PATH=" + os.Getenv("PATH")},
		Session: runner.Options{
			User:           runner.User{Name: runner.LocalUser(), Admin: true},
			SandboxOptions: runner.SandboxOptions{Backend: chosen, Choice: choice, Setup: sandbox.Setup{Resources: resources}},
			PolicyOptions:  runner.PolicyOptions{Policy: p, OnPrompt: dispatch.OnPromptDeny},
		},
	}
	return m
}

func skip(t testing.TB, why string) {
	batch.MissingMachine.Store(why)
	t.Skip(why)
}

func writeImage(t testing.TB, root, file string, c v1.Config) {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		read, write := io.Pipe()
		go func() { write.CloseWithError(archive.Pack(write, root, archive.PackOptions{Name: "."})) }()
		return read, nil
	})
	must(t, err)
	made, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	config, err := made.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", runtime.GOARCH, c
	made, err = mutate.ConfigFile(made, config)
	must(t, err)
	tag, err := name.NewTag("batch.test/busybox:1")
	must(t, err)
	must(t, tarball.WriteToFile(file, tag, made))
}

// builtProgram returns a program that make build made.
func builtProgram(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv(userDir); dir != "" {
		return filepath.Join(dir, name)
	}
	path, err := filepath.Abs(filepath.Join("../../bin", name))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		skip(t, name+" is not built: make caisson")
	}
	return path
}

// backends runs a test on each backend on which commands can be root, beside other
// tests.
func backends(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	onBackends(t, sandboxtest.Sampled(t, "gvisor", "runc"), test)
}

func onBackends(t *testing.T, names []string, test func(t *testing.T, m *machine)) {
	t.Helper()
	t.Parallel()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newMachine(t, name))
		})
	}
}

// backendsAlone is backends one after the other and beside no other test, for tests in
// which something has little time.
func backendsAlone(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	for _, name := range sandboxtest.Sampled(t, "gvisor", "runc") {
		t.Run(name, func(t *testing.T) { test(t, newMachine(t, name)) })
	}
}

// task returns a Harbor task on the machine's image with these files.
func (m *machine) task(toml string, files map[string]string) task.Task {
	m.t.Helper()
	dir := filepath.Join(m.t.TempDir(), "task")
	write(m.t, dir, map[string]string{"task.toml": toml, "instruction.md": "Do it.", "environment/Dockerfile": "FROM scratch\n"})
	write(m.t, dir, files)
	list, err := task.Load([]string{dir}, task.Options{})
	must(m.t, err)
	got := list[0]
	if len(got.Unsupported) > 0 {
		m.t.Fatal(got.Unsupported)
	}
	m.place(&got.Environment)
	for i := range got.Steps {
		m.place(&got.Steps[i].Verifier.Environment)
	}
	return got
}

// place makes an environment use the machine's image instead of a build.
func (m *machine) place(e *task.Environment) { e.Image = "docker-archive:" + m.image }

func (m *machine) run(definition task.Task, agent string) (batch.Result, string) {
	m.t.Helper()
	dir := m.t.TempDir()
	defer func() {
		if text, err := os.ReadFile(filepath.Join(dir, batch.VerifierDir, batch.OutputFile)); m.t.Failed() && err == nil {
			m.t.Logf("output of the verifier: %s", text)
		}
	}()
	ctx, cancel := context.WithTimeout(m.t.Context(), 3*time.Minute)
	defer cancel()
	r := batch.NewTrials(m.o).Run(ctx, batch.Trial{Key: batch.Key{Task: definition.ID, Agent: agent, Attempt: 1}, Definition: &definition}, dir, nil)
	m.nothingLeft()
	return r, dir
}

// nothingLeft fails the test if a sandbox or a session is left.
func (m *machine) nothingLeft() {
	m.t.Helper()
	left, err := m.host.Sweep(context.Background())
	if err != nil || len(left) > 0 {
		m.t.Errorf("left behind: %v, %v", left, err)
	}
	for _, pattern := range []string{"sessions/*", "layers/*"} {
		if names, _ := filepath.Glob(filepath.Join(m.state, pattern)); len(names) > 0 {
			m.t.Errorf("left behind: %v", names)
		}
	}
}

func read(t testing.TB, elem ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	must(t, err)
	return string(text)
}

// hello is a task that asks for a file, and for changes outside the working directory.
var hello = map[string]string{
	"solution/solve.sh": "#!/bin/sh\nset -e\nsleep 0.1\n[ -e /tests ] && exit 3\n[ \"$(cat given)\" = given ]\necho hello > hello.txt\nrm /var/removed\necho new > /opt/new\necho kept > /tmp/kept\nmkdir /logs/agent/sub\necho log > /logs/agent/sub/log\necho art > /logs/artifacts/art\n",
	"tests/test.sh":     "#!/bin/sh\necho checking\n[ \"$(cat /app/hello.txt)\" = hello ] && [ ! -e /var/removed ] && [ \"$(cat /opt/new)\" = new ] && [ \"$(cat /opt/old)\" = old ] && [ \"$(cat /tmp/kept)\" = kept ] && [ -e /app/given ] && [ -s /logs/agent/trajectory.json ] && [ -e /logs/agent/sub/log ] && [ -e /logs/artifacts/art ] && [ ! -e /solution ] && reward=1\necho ${reward:-0} > /logs/verifier/reward.txt\n",
}

// TestOracleAndNop is acceptance check 9, and check 6 for the oracle.
func TestOracleAndNop(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		definition := m.task(`version = "1.0"`, hello)
		r, dir := m.run(definition, batch.Oracle)
		if r.Outcome != batch.Passed || r.Reward == nil || *r.Reward != 1 {
			t.Errorf("oracle: %+v", r)
		}
		if got := read(t, dir, batch.VerifierDir, batch.OutputFile); got != "checking\n" {
			t.Errorf("output of the verifier: %q", got)
		}
		for _, file := range []string{"agent/sub/log", "artifacts/art", "agent/trajectory.json", "workspace.patch", "session/trace.jsonl", "verifier-session/trace.jsonl", "verifier/reward.txt"} {
			info, err := os.Lstat(filepath.Join(dir, file))
			if err != nil || ownerOf(info) != os.Geteuid() { // acceptance check 11
				t.Errorf("%s: %v", file, err)
			}
		}
		checkTrajectory(t, dir)
		// The root was made for this trial, and is no change of the agent's.
		state := read(t, dir, batch.StateFile)
		if !strings.Contains(state, "app/hello.txt") || strings.Contains(state, "bin/busybox") || len(state) > 100_000 {
			t.Errorf("the state has %d bytes", len(state))
		}
		r, _ = m.run(definition, batch.Nop)
		if r.Outcome != batch.Failed || r.Reward == nil || *r.Reward != 0 {
			t.Errorf("nop: %+v", r)
		}
	})
}

// TestDeepChanges: changes deep below an image's root reach the verifier.
func TestDeepChanges(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		files := map[string]string{
			"solution/solve.sh": solve("cd /data\necho more >> appended/deep/file\nchmod 700 mode/deep/file\nrm removed/deep/file\nmv renamed away\nrm -r replaced/deep\nmkdir replaced/deep\necho new > replaced/deep/other\nrm -r link/deep\nln -s /opt link/deep\nmkdir -p made/a/b\necho new > made/a/b/file\ntouch -d @1 appended/deep/file appended/deep appended made/a/b/file made/a made"),
			"tests/test.sh":     check(`cd /data && [ "$(cat appended/deep/file)" = "$(printf 'appended\nmore')" ] && [ -x mode/deep/file ] && [ -d removed/deep ] && [ ! -e removed/deep/file ] && [ ! -e renamed ] && [ "$(cat away/deep/file)" = renamed ] && [ "$(ls replaced/deep)" = other ] && [ "$(cat link/deep/old)" = old ] && [ "$(cat made/a/b/file)" = new ] && [ "$(cat kept/deep/file)" = kept ]`),
		}
		r, _ := m.run(m.task("", files), batch.Oracle)
		expect(t, "changes", r, batch.Passed, "", "")
	})
}

// TestOwners: owners, and directories' set-group-ID and sticky bits, reach the
// verifier.
func TestOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: several owners")
	}
	backends(t, func(t *testing.T, m *machine) {
		files := map[string]string{
			"solution/solve.sh": solve("chmod 1777 /tmp\nmkdir -p /opt/team/in /opt/drop /opt/own\necho x > /opt/own/file\nln -s file /opt/own/link\ntouch mine\n" +
				"chmod 2775 /opt/team\nchgrp 1001 /opt/team\nmkdir /opt/team/later\nchmod 1777 /opt/drop\nchown -h 1000:1001 /opt/own /opt/own/file /opt/own/link mine /data/kept"),
			"tests/test.sh": "#!/bin/sh\nstat -c '%n %a %u:%g' /tmp /opt/team /opt/team/in /opt/team/later /opt/drop /opt/own /opt/own/file /opt/own/link /app/mine /data/kept /data/kept/deep /\necho 1 > /logs/verifier/reward.txt\n",
		}
		r, dir := m.run(m.task("", files), batch.Oracle)
		expect(t, "owners", r, batch.Passed, "", "")
		want := "/tmp 1777 0:0\n/opt/team 2775 0:1001\n/opt/team/in 755 0:0\n/opt/team/later 2755 0:1001\n/opt/drop 1777 0:0\n/opt/own 755 1000:1001\n/opt/own/file 644 1000:1001\n/opt/own/link 777 1000:1001\n/app/mine 644 1000:1001\n/data/kept 755 1000:1001\n/data/kept/deep 755 0:0\n/ 755 0:0\n"
		if got := read(t, dir, batch.VerifierDir, batch.OutputFile); got != want {
			t.Errorf("the verifier finds\n%swant\n%s", got, want)
		}
	})
}

// script makes the model "model" play turns of a script.
func (m *machine) script(turns string) {
	m.t.Helper()
	file := filepath.Join(m.t.TempDir(), "script.yaml")
	must(m.t, os.WriteFile(file, []byte("version: 1\nname: scripted\nturns:\n"+turns), 0o644))
	m.o.NewModel = func(_ context.Context, agent string) (batch.Model, error) {
		if agent != "model" {
			return batch.Model{}, fmt.Errorf("no model %s", agent)
		}
		model, err := replay.Open(file, replay.Options{})
		return batch.Model{Profiles: []loop.Profile{{Name: agent, Model: model}}, Close: func() {}}, err
	}
}

// check is a test.sh with reward 1 if a condition holds.
func check(condition string) string {
	return "#!/bin/sh\nset -x\nif " + condition + "; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
}

func solve(script string) string { return "#!/bin/sh\nset -e\n" + script + "\n" }

// expect checks a result's outcome, class and limit.
func expect(t testing.TB, name string, r batch.Result, outcome batch.Outcome, class batch.Class, limit string) {
	t.Helper()
	if r.Outcome != outcome || r.Class != class || r.Limit != limit {
		t.Errorf("%s: %s %q (%s), limit %q; want %s %q, limit %q", name, r.Outcome, r.Class, r.Cause, r.Limit, outcome, class, limit)
	}
}

// TestRewards is acceptance checks 2 and 3, for files in the sandbox.
func TestRewards(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		for _, c := range []struct {
			name, test string
			outcome    batch.Outcome
			class      batch.Class
			reward     float64
		}{
			{"exit status 1", "echo 1 > /logs/verifier/reward.txt\nexit 1\n", batch.Passed, "", 1},
			{"missing", "exit 0\n", batch.Failed, batch.RewardMissing, -1},
			{"a symlink to the host", "ln -s /etc/passwd /logs/verifier/reward.txt\nln -s /etc/passwd /logs/verifier/test-stdout.txt\n", batch.Failed, batch.RewardMissing, -1},
		} {
			r, dir := m.run(m.task("", map[string]string{"tests/test.sh": c.test}), batch.Nop)
			expect(t, c.name, r, c.outcome, c.class, "")
			if c.reward >= 0 && (r.Reward == nil || *r.Reward != c.reward) {
				t.Errorf("%s: %+v", c.name, r)
			}
			if info, err := os.Lstat(filepath.Join(dir, batch.VerifierDir, batch.OutputFile)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s: output of the verifier: %v, %v", c.name, info, err)
			}
		}
	})
}

// priced is a model that is not a recording, so that its requests are reserved.
type priced struct{ loop.Model }

func (priced) Info() loop.ModelInfo { return loop.ModelInfo{Provider: "replay", Model: "priced"} }

// TestCostOfAll: a trial has no verdict if too little is left of the cost bound of all
// trials. The controls are a trial that reaches its own bound, and one with enough.
func TestCostOfAll(t *testing.T) {
	m := newMachine(t, "runc")
	m.script("  - text: Done.\n")
	scripted := m.o.NewModel
	m.o.NewModel = func(ctx context.Context, agent string) (batch.Model, error) {
		model, err := scripted(ctx, agent)
		if err == nil {
			model.Profiles[0].Model, model.Profiles[0].Price = priced{model.Profiles[0].Model}, &limits.Price{Input: 1, Output: 1}
		}
		return model, err
	}
	definition := m.task("", map[string]string{"tests/test.sh": check("true")})
	little, much := new(int64(1000)), new(int64(1_000_000_000))
	for _, c := range []struct {
		name                string
		all, settings, task *int64
		outcome             batch.Outcome
		limit               string
	}{
		{"all", little, much, much, batch.NotRun, ""},
		{"all alone", little, nil, nil, batch.NotRun, ""},
		{"settings", much, little, nil, batch.Passed, "cost_usd"},
		{"settings as well", little, little, nil, batch.Passed, "cost_usd"},
		{"task", much, nil, little, batch.Passed, "cost_usd"},
		{"enough", much, nil, nil, batch.Passed, ""},
	} {
		m.o.Session.Budget.CostMicroUSD, definition.Steps[0].Agent.Budget.CostMicroUSD = c.settings, c.task
		r := batch.NewTrials(m.o).Run(t.Context(), batch.Trial{Key: batch.Key{Task: "task", Agent: "model", Attempt: 1}, Definition: &definition}, t.TempDir(), c.all)
		expect(t, c.name, r, c.outcome, "", c.limit)
		if asked := c.limit == "" && c.outcome == batch.Passed; (r.Usage.Rounds > 0) != asked || c.outcome == batch.NotRun && r.Cause == "" {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// TestAgentTimeout is acceptance check 4: the verifier runs all the same.
func TestAgentTimeout(t *testing.T) {
	backendsAlone(t, func(t *testing.T, m *machine) {
		files := map[string]string{"solution/solve.sh": solve("echo x > done; sleep 60; echo y > done"), "tests/test.sh": check("[ \"$(cat done)\" = x ]")}
		r, _ := m.run(m.task("[agent]\ntimeout_sec = 1.5\n", files), batch.Oracle)
		expect(t, "passed", r, batch.Passed, "", "wall_time")
		files["tests/test.sh"] = check("[ \"$(cat done)\" = y ]")
		r, _ = m.run(m.task("[agent]\ntimeout_sec = 1.5\n", files), batch.Oracle)
		expect(t, "not passed", r, batch.Limit, "", "wall_time")
	})
}

// TestEmptyAnswers: a model can't leave the denominator by its answer, and the verifier
// decides as usual. The control is a failing model.
func TestEmptyAnswers(t *testing.T) {
	m := newMachine(t, "runc")
	for _, c := range []struct {
		name, script, test string
		outcome            batch.Outcome
		class              batch.Class
	}{
		{"not passed", "  - text: \" \"\n  - text: \" \"\n", "false", batch.Failed, batch.AgentFailed},
		{"passed", "  - text: \" \"\n  - text: \" \"\n", "true", batch.Passed, ""},
		{"the recording ends", "  - text: \" \"\n", "false", batch.Infrastructure, batch.Provider},
	} {
		m.script(c.script)
		r, _ := m.run(m.task("", map[string]string{"tests/test.sh": check(c.test)}), "model")
		expect(t, c.name, r, c.outcome, c.class, "")
	}
}

// interrupted is a model that calls a function before each answer, and fails if that
// does.
type interrupted struct {
	loop.Model
	before func(answered int) error
	count  int
}

func (i *interrupted) Complete(ctx context.Context, r loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	if err := i.before(i.count); err != nil {
		return loop.Response{}, err
	}
	i.count++
	return i.Model.Complete(ctx, r, onDelta)
}

// interrupt makes a script's model call a function before each answer.
func (m *machine) interrupt(turns string, before func(answered int) error) {
	m.script(turns)
	scripted := m.o.NewModel
	m.o.NewModel = func(ctx context.Context, agent string) (batch.Model, error) {
		model, err := scripted(ctx, agent)
		if err == nil {
			model.Profiles[0].Model = &interrupted{Model: model.Profiles[0].Model, before: before}
		}
		return model, err
	}
}

// acts is a script of a model that runs a command and then ends.
const acts = "  - calls: [{tool: shell, input: {command: touch acted}}]\n  - text: Done.\n"

// TestRefusedConversation: an agent can't leave the denominator by a conversation that
// its provider refuses. The controls are requests without the agent's part, and faults
// of the provider.
func TestRefusedConversation(t *testing.T) {
	m := newMachine(t, "runc")
	invalid := func(status int) error {
		return &loop.ModelError{Class: loop.ModelInvalidRequest, Status: status, Err: errors.New("messages.2 is invalid")}
	}
	tooLarge := &loop.ModelError{Class: loop.ModelContextOverflow, Status: http.StatusTooManyRequests, Err: errors.New("too large for the rate limit")}
	for _, c := range []struct {
		name    string
		at      int
		err     error
		outcome batch.Outcome
		class   batch.Class
		limit   string
	}{
		{"after a command", 1, invalid(400), batch.Failed, batch.AgentFailed, ""},
		{"by its content", 1, &loop.ModelError{Class: loop.ModelAuth, Status: 403, Err: errors.New("flagged")}, batch.Failed, batch.AgentFailed, ""},
		{"before a command", 0, invalid(400), batch.Infrastructure, batch.Provider, ""},
		{"a failure", 1, &loop.ModelError{Class: loop.ModelServer, Status: 500, Err: errors.New("sorry")}, batch.Infrastructure, batch.Provider, ""},
		{"by what it wrote", 0, &loop.ModelError{Class: loop.ModelServer, Status: 500, Err: loop.AnswerError("can't be parsed")}, batch.Failed, batch.AgentFailed, ""},
		{"by what it read", 1, tooLarge, batch.Limit, "", "context"},
		{"by the task's own text", 0, tooLarge, batch.Infrastructure, batch.Provider, ""},
	} {
		m.interrupt(acts, func(answered int) error {
			if answered == c.at {
				return c.err
			}
			return nil
		})
		r, _ := m.run(m.task("", map[string]string{"tests/test.sh": check("false")}), "model")
		expect(t, c.name, r, c.outcome, c.class, c.limit)
	}
	m.interrupt(acts, func(answered int) error {
		if answered == 1 {
			return invalid(400)
		}
		return nil
	})
	r, _ := m.run(m.task("", map[string]string{"tests/test.sh": check("[ -e acted ]")}), "model")
	expect(t, "what was done before", r, batch.Passed, "", "")
	files := map[string]string{}
	for _, step := range []string{"one", "two"} {
		files["steps/"+step+"/instruction.md"], files["steps/"+step+"/tests/test.sh"] = step, check("[ -e acted ] && [ ! -e again ]")
	}
	for at, err := range map[int]error{2: tooLarge, 3: invalid(400)} {
		m.interrupt(acts+"  - calls: [{tool: shell, input: {command: touch again}}]\n  - text: Done.\n", func(answered int) error {
			if answered == at {
				return err
			}
			return nil
		})
		r, _ = m.run(m.task("[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n", files), "model")
		if at == 2 {
			expect(t, "by what it read in an earlier step", r, batch.Passed, "", "context")
		} else {
			expect(t, "in a later step", r, batch.Failed, batch.AgentFailed, "")
		}
	}
}

// TestUnremovableSession: a session that can't be ended counts against an agent that
// has run a command. The control is an agent that hasn't.
func TestUnremovableSession(t *testing.T) {
	m := newMachine(t, "runc")
	for _, c := range []struct {
		name, script string
		outcome      batch.Outcome
		class        batch.Class
	}{
		{"after a command", acts, batch.Failed, batch.StateUnreadable},
		{"without one", "  - text: Done.\n", batch.Infrastructure, batch.Machine},
	} {
		m.interrupt(c.script, func(answered int) error { // what can't be read is not removed
			if answered > 0 {
				return nil
			}
			layers, err := filepath.Glob(filepath.Join(m.state, "sessions/*/overlay"))
			if err != nil || len(layers) == 0 {
				return err
			}
			return os.Mkdir(filepath.Join(layers[len(layers)-1], "state.json"), 0o700)
		})
		definition := m.task("", map[string]string{"tests/test.sh": check("true")})
		r := batch.NewTrials(m.o).Run(t.Context(), batch.Trial{Key: batch.Key{Task: "task", Agent: "model", Attempt: 1}, Definition: &definition}, t.TempDir(), nil)
		expect(t, c.name, r, c.outcome, c.class, "")
	}
}

func TestVerifierTimeout(t *testing.T) {
	m := newMachine(t, "runc")
	r, dir := m.run(m.task("[verifier]\ntimeout_sec = 0.5\n", map[string]string{"tests/test.sh": "echo 1 > /logs/verifier/reward.txt; echo begun; sleep 60\n"}), batch.Nop)
	expect(t, "timeout", r, batch.Failed, batch.VerifierTimeout, "")
	if len(r.Sessions) != 2 || read(t, dir, "verifier/test-stdout.txt") != "begun\n" {
		t.Errorf("%+v", r)
	}
}

// forgedCaches are cache files that a solution forges. The image has the first ones.
var forgedCaches = []string{
	"/root/.cache/go-build/00/0-a", "/app/__pycache__/work.pyc", "/go/pkg/mod/m/m.go", "/pyc/work.pyc",
	"/app/.pytest_cache/v/cache/lastfailed", "/app/node_modules/.cache/babel/x", "/app/target/debug/.fingerprint/x", "/root/.npm/_cacache/x",
	"/app/tsconfig.tsbuildinfo", "/tmp/jest_rs/x", "/root/.cargo/registry/src/x", "/root/.m2/repository/x", "/app/.gradle/x", "/var/cache/apt/x",
}

// TestForgedCaches: the verifier sees the image's caches, not the agent's. The control:
// it does see files that a package manager linked from its cache, and files that are no
// cache.
func TestForgedCaches(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		for _, file := range forgedCaches[:4] {
			write(t, m.root, map[string]string{file: "given\n"})
		}
		writeImage(t, m.root, m.image, v1.Config{WorkingDir: "/app", Env: []string{"PATH=/bin", "GOPATH=/go", "PYTHONPYCACHEPREFIX=/pyc"}})
		all := strings.Join(forgedCaches, " ")
		forge := "for f in " + all + " /opt/control; do mkdir -p ${f%/*}; echo forged > $f; done\nln /root/.cache/go-build/00/0-a /linked; ln /linked /again\n"
		judge := "ls -d " + strings.Join(forgedCaches[4:], " ") + " 2> /dev/null\ncat " + strings.Join(forgedCaches[:4], " ") + " 2> /dev/null\nenv | grep '^GO.*CACHE=' | sort\n"
		const env = "GOCACHE=/root/.cache/go-build\nGOMODCACHE=/go/pkg/mod\n"
		for _, c := range []struct{ name, forge, want string }{
			{"files", forge, "given\ngiven\ngiven\ngiven\n" + env},
			// The caches are moved, with symlinks to them.
			{"symlinks", forge + "mkdir /app/moved; for d in /root/.cache /go/pkg /root/.npm /root/.cargo /root/.m2; do mv $d /app/moved/${d##*/}; ln -s /app/moved/${d##*/} $d; done\n", "given\ngiven\n" + env},
			{"the home", forge + "mv /root /app/home; ln -s /app/home /root\n", "given\ngiven\ngiven\n" + env},
		} {
			if m.backend == "gvisor" && c.name != "files" {
				continue // the filter is the host's
			}
			definition := m.task("", map[string]string{
				"solution/solve.sh": solve(c.forge + "[ \"$(cat " + all + " | sort -u)\" = forged ]"),
				"tests/test.sh":     "#!/bin/sh\n[ \"$(cat /opt/control)\" = forged ] && echo 1 > /logs/verifier/reward.txt\n(" + judge + ") > /logs/verifier/found\ncat /linked /again\n",
			})
			r, dir := m.run(definition, batch.Oracle)
			expect(t, c.name, r, batch.Passed, "", "")
			if found := read(t, dir, batch.VerifierDir, "found"); found != c.want {
				t.Errorf("%s: the verifier finds\n%s", c.name, found)
			}
			if output := read(t, dir, batch.VerifierDir, batch.OutputFile); output != "forged\nforged\n" {
				t.Errorf("%s: files that were linked from a cache: %q", c.name, output)
			}
		}
		// The task's other trials don't have it.
		r, _ := m.run(m.task("", map[string]string{"tests/test.sh": check("[ ! -e /opt/control ] && [ \"$(cat " + strings.Join(forgedCaches[:4], " ") + " | sort -u)\" = given ]")}), batch.Nop)
		expect(t, "another trial", r, batch.Passed, "", "")
	})
}

// TestModelSeesNoTests is acceptance check 6.
func TestModelSeesNoTests(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		m.script("  - text: I look.\n    calls:\n      - tool: shell\n        input: {command: \"ls /tests /solution /app/tests; id -u; touch /opt/from-model\"}\n        expect: {not_contains: [test.sh, solve.sh], contains: \"0\"}\n      - tool: write_file\n        input: {path: hello.txt, content: \"hi\\n\"}\n  - text: Done.\n")
		r, dir := m.run(m.task("", map[string]string{"tests/test.sh": check("[ -e /opt/from-model ] && [ \"$(cat hello.txt)\" = hi ]"), "solution/solve.sh": "true"}), "model")
		expect(t, "model", r, batch.Passed, "", "")
		if r.Model != "replay/scripted" || r.Usage.Rounds != 2 || r.Usage.ToolCalls != 2 {
			t.Errorf("%+v", r)
		}
		for _, hidden := range []string{"test.sh", "solve.sh"} {
			if strings.Contains(strings.ReplaceAll(read(t, dir, "session/trace.jsonl"), "ls /tests /solution /app/tests", ""), hidden+"\\n") {
				t.Errorf("the agent has seen %s", hidden)
			}
		}
		checkTrajectory(t, dir)
		if !strings.Contains(read(t, dir, "agent/trajectory.json"), `"ATIF-v1.7"`) || !strings.Contains(read(t, dir, batch.PatchFile), "+hi") {
			t.Error("the trajectory or the patch is missing")
		}
	})
}

// TestSeparateVerifier is acceptance check 7.
func TestSeparateVerifier(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		toml := "artifacts = [\"/app/out.txt\", \"rel\", { source = \"/app/tree\", destination = \"t\", exclude = [\"*.tmp\"] }, \"/app/absent\"]\n[verifier]\nenvironment_mode = \"separate\"\n"
		r, dir := m.run(m.task(toml, map[string]string{
			"solution/solve.sh": solve("echo o > out.txt; echo r > rel; mkdir tree; echo a > tree/a; echo b > tree/b.tmp; ln tree/b.tmp tree/kept; echo s > secret; echo l > /logs/artifacts/l; mkdir -p /logs/artifacts/t; echo p > /logs/artifacts/t/planted; echo p > /logs/artifacts/t/planted.tmp; echo g > /logs/agent/g; echo 1 > /logs/verifier/reward.txt; echo x > /opt/other"),
			"tests/test.sh":     check("[ \"$(cat /app/out.txt /app/rel /app/tree/a /app/tree/kept /logs/artifacts/l /logs/artifacts/t/a /logs/artifacts/app/out.txt | tr -d '\\n')\" = orablao ] && [ ! -e /app/tree/b.tmp ] && [ ! -e /app/tree/planted ] && [ ! -e /app/tree/planted.tmp ] && [ ! -e /logs/artifacts/t/planted ] && [ ! -e /app/secret ] && [ ! -e /logs/agent/g ] && [ ! -e /opt/other ] && [ ! -s /logs/verifier/reward.txt ] && [ -e /app/given ]"),
		}), batch.Oracle)
		expect(t, "separate", r, batch.Passed, "", "")
		if read(t, dir, "artifacts/t/a") != "a\n" {
			t.Error("the artifact is missing")
		}
	})
}

// TestLinksOfAnAgent: an agent's symlinks lead to no file that only the verifier has.
// The control: links to its own files, or the image's, work.
func TestLinksOfAnAgent(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		write(t, m.root, map[string]string{"app/merged/expected.txt": "expected\n"})
		writeImage(t, m.root, m.image, v1.Config{WorkingDir: "/app", Env: []string{"PATH=/bin"}})
		forge := "mkdir -p out merged; echo expected > out/own; ln -s own out/near; ln -s $PWD/out/own out/far\n" +
			"ln -s /tests/expected.txt answer.txt; ln -s /tests out/dir; ln -s ../../tests/expected.txt out/up\n" +
			"ln -s . out/here; ln -s here/../../../tests/expected.txt out/two; ln -s /proc/self/root/tests/expected.txt out/proc\n" +
			"for i in 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do ln -s /proc/self/fd/$i out/fd$i; done\n"
		const found = "a=0; for f in answer.txt out/dir/expected.txt out/up out/two out/proc $more; do cmp -s $f /tests/expected.txt && a=$((a+1)); done; for f in out/fd*; do [ -L $f ] && a=$((a+1)); done\n"
		const near = "cmp -s out/near out/own && cmp -s out/far out/own || a=nothing\n"
		for _, c := range []struct{ name, toml, forge, test string }{
			{
				"separate", "artifacts = [\"/app/answer.txt\", \"out\"]\n[verifier]\nenvironment_mode = \"separate\"\n",
				forge + "ln -s ../merged out/merged; ln -s /tests/expected.txt /logs/artifacts/answer.txt; ln -s /tests /logs/artifacts/dir",
				"more='out/merged/expected.txt /logs/artifacts/answer.txt /logs/artifacts/dir/expected.txt /logs/artifacts/app/answer.txt /logs/artifacts/out/up'\n" + found + near,
			},
			{
				"shared", "", forge + "ln -s /opt/old image; ln -s /tests /logs/agent/dir; ln -s / /app/root; ln -s root/tests/expected.txt twice",
				"more='twice root/tests/expected.txt /logs/agent/dir/expected.txt'\n" + found + near + "[ \"$(cat image)\" = old ] || a=nothing\n",
			},
		} {
			r, dir := m.run(m.task(c.toml, map[string]string{
				"solution/solve.sh": solve(c.forge), "tests/expected.txt": "expected\n", "tests/test.sh": "#!/bin/sh\n" + c.test + "ls -lR /app /logs\necho $a > /logs/verifier/reward.txt\n",
			}), batch.Oracle)
			if r.Reward == nil || *r.Reward != 0 {
				t.Errorf("%s: %+v\n%s", c.name, r, read(t, dir, batch.VerifierDir, batch.OutputFile))
			}
			if !slices.Contains(r.LeftOut, "/app/answer.txt -> /tests/expected.txt") {
				t.Errorf("%s: left out %q", c.name, r.LeftOut)
			}
		}
		dir := write(t, t.TempDir(), map[string]string{
			"work/file": "x", "tests/expected.txt": "expected\n", "tests/test.sh": found + strings.Replace(near, "a=nothing", "exit 0", 1) + "[ -x program ] && exit $((1-(a>0)))\nexit 0\n",
			"tasks.jsonl": `{"id":"line","prompt":"Do it.","workspace":"work","verify":{"tests":"tests"}}`,
		})
		list, err := task.Load([]string{filepath.Join(dir, "tasks.jsonl")}, task.Options{})
		must(t, err)
		m.script("  - text: I do.\n    calls:\n      - tool: shell\n        input: {command: " + strconv.Quote(forge+"ln -s /usr/bin/env program; ln -s /etc/passwd passwd") + "}\n  - text: Done.\n")
		r, trial := m.run(list[0], "model")
		expect(t, "line", r, batch.Failed, "", "")
		if !slices.Contains(r.LeftOut, "/workspace/passwd -> /etc/passwd") {
			t.Errorf("line: left out %q\n%s", r.LeftOut, read(t, trial, batch.VerifierDir, batch.OutputFile))
		}
	})
}

// TestBackgroundEndsBeforeCollecting: a background command doesn't affect what is
// collected, and the next step's model learns that it ended.
func TestBackgroundEndsBeforeCollecting(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		watch := `touch began; while :; do for p in /proc/[0-9]*; do grep -q [p]ack-changes $p/cmdline && kill -9 ${p#/proc/}; done; date > beat; done`
		m.script("  - text: I watch.\n    calls:\n      - tool: shell\n        input: {command: " + strconv.Quote(watch) + ", background: true}\n      - tool: shell\n        input: {command: \"while [ ! -e began ]; do :; done; echo done > file\"}\n" +
			"  - text: Done.\n  - text: Done again.\n")
		files := map[string]string{}
		for _, step := range []string{"one", "two"} {
			files["steps/"+step+"/instruction.md"], files["steps/"+step+"/tests/test.sh"] = step, check("[ \"$(cat file)\" = done ]")
		}
		r, dir := m.run(m.task("[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n", files), "model")
		expect(t, "background", r, batch.Passed, "", "")
		for _, text := range []string{`"ended_by":"collect"`, "1 command in the background ended"} {
			if !strings.Contains(read(t, dir, "session/trace.jsonl"), text) {
				t.Errorf("the records lack %s", text)
			}
		}
	})
}

// TestNetworks is acceptance check 8, and the rest of 1: commands of an agent without
// network have no proxy, but its verifier's with one do.
func TestNetworks(t *testing.T) {
	m := newMachine(t, "gvisor")
	files := map[string]string{"solution/solve.sh": solve("env > env.txt"), "tests/test.sh": check("! grep -q HTTPS_PROXY env.txt && env | grep -q HTTPS_PROXY")}
	definition := m.task("[agent]\nnetwork_mode = \"no-network\"\n[verifier]\nnetwork_mode = \"public\"\n", files)
	r, _ := m.run(definition, batch.Oracle)
	expect(t, "networks", r, batch.Passed, "", "")

	files["tests/test.sh"] = check("! env | grep -q HTTPS_PROXY")
	r, dir := m.run(m.task("version = \"1.0\"\n[environment]\nmemory = \"256M\"\nallow_internet = false\n", files), batch.Oracle)
	expect(t, "no internet", r, batch.Passed, "", "")
	if !strings.Contains(read(t, dir, "session/trace.jsonl"), "268435456") {
		t.Error("the limit of memory is not in the records")
	}
}

func TestSteps(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		toml := "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\nmin_reward = %s\n[[steps]]\nname = \"three\"\n"
		files := map[string]string{
			"steps/one/instruction.md": "1", "steps/one/tests/test.sh": check("[ -e one ] && [ ! -e two ]"), "steps/one/solution/solve.sh": solve("touch one"),
			"steps/two/instruction.md": "2", "steps/two/tests/test.sh": "[ -e one ] && [ -e two ] && [ -e set-up ] && [ ! -e /tests/planted ] && echo 0.5 > /logs/verifier/reward.txt\n", "steps/two/solution/solve.sh": solve("[ ! -e /tests ]; touch two"),
			"steps/two/workdir/setup.sh": "#!/bin/sh\ntouch set-up\n",
			"steps/three/instruction.md": "3", "steps/three/tests/test.sh": check("[ -e three ]"), "steps/three/solution/solve.sh": solve("touch three"),
		}
		r, dir := m.run(m.task(fmt.Sprintf(toml, "0.5"), files), batch.Oracle)
		if r.Outcome != batch.Failed || r.Reward == nil || *r.Reward < 0.83 || *r.Reward > 0.84 || len(r.Steps) != 3 || r.Class != "" {
			t.Errorf("%+v", r)
		}
		if read(t, dir, "steps/2-two/verifier/reward.txt") != "0.5\n" {
			t.Error("the reward of step two is missing")
		}
		r, _ = m.run(m.task(fmt.Sprintf(toml, "0.6"), files), batch.Oracle)
		if len(r.Steps) != 2 || r.Class != batch.MinRewardNotMet {
			t.Errorf("%+v", r)
		}
		r, _ = m.run(m.task(fmt.Sprintf(toml, "{ reward = 0.5, style = 0 }"), files), batch.Oracle)
		if len(r.Steps) != 2 || r.Class != batch.MinRewardNotMet {
			t.Errorf("a least reward that is missing: %+v", r)
		}
		final, _ := m.run(m.task("multi_step_reward_strategy = \"final\"\n"+fmt.Sprintf(toml, "0")+"min_reward = { style = 1 }\n", files), batch.Oracle)
		expect(t, "final, with a least reward before which no step begins", final, batch.Passed, "", "")
	})
}

func TestHealthCheck(t *testing.T) {
	m := newMachine(t, "runc")
	toml := "[environment.healthcheck]\ncommand = \"echo x >> n; [ $(wc -l < n) -ge %d ]\"\ninterval_sec = 0.01\nretries = 3\n"
	files := map[string]string{"tests/test.sh": check("[ $(wc -l < n) = 3 ]")}
	r, _ := m.run(m.task(fmt.Sprintf(toml, 3), files), batch.Nop)
	expect(t, "healthy", r, batch.Passed, "", "")
	r, _ = m.run(m.task(fmt.Sprintf(toml, 9), files), batch.Nop)
	expect(t, "unhealthy", r, batch.Infrastructure, batch.Environment, "")
	batch.SetHealthTime(t, time.Second)
	for _, command := range []string{"false", "sleep 1000"} {
		r, dir := m.run(m.task("[environment.healthcheck]\ncommand = \""+command+"\"\ninterval_sec = 0\nretries = 1000000000\n", files), batch.Nop)
		expect(t, command, r, batch.Infrastructure, batch.Environment, "")
		if want := "the health check \"" + command + "\" did not succeed within 1s"; r.Cause != want || strings.Count(read(t, dir, "session/trace.jsonl"), `"sandbox.exec_ended"`) > 11 {
			t.Errorf("%s: %q", command, r.Cause)
		}
	}
}

// TestSecrets: what the harness writes about a trial has no secret.
func TestSecrets(t *testing.T) {
	m := newMachine(t, "runc")
	const value = "kept-from-everybody"
	m.o.Session.Secrets = []redact.Secret{{Name: "TOKEN", Value: value}}
	r, dir := m.run(m.task("", map[string]string{"tests/test.sh": "echo " + value + "\necho 1 > /logs/verifier/reward.txt\n", "solution/solve.sh": solve("echo " + value)}), batch.Oracle)
	expect(t, "secrets", r, batch.Passed, "", "")
	for _, file := range []string{"verifier/test-stdout.txt", "output.txt"} {
		if got := read(t, dir, file); got != "[redacted:TOKEN]\n" {
			t.Errorf("%s: %q", file, got)
		}
	}
	r, _ = m.run(m.task("[environment.healthcheck]\ncommand = \"echo "+value+"; false\"\nretries = 0\n", map[string]string{"tests/test.sh": check("true")}), batch.Nop)
	if expect(t, "unhealthy", r, batch.Infrastructure, batch.Environment, ""); strings.Contains(r.Cause, value) || !strings.Contains(r.Cause, "[redacted:TOKEN]") {
		t.Error(r.Cause)
	}
}

// TestCollect: hooks run in the agent's sandbox, as the artifacts show.
func TestCollect(t *testing.T) {
	m := newMachine(t, "runc")
	r, _ := m.run(m.task("[verifier]\nenvironment_mode = \"separate\"\n[[verifier.collect]]\ncommand = \"cp made /logs/artifacts/collected\"\n", map[string]string{
		"solution/solve.sh": solve("touch made"), "tests/test.sh": check("[ -e /logs/artifacts/collected ]"),
	}), batch.Oracle)
	expect(t, "collected", r, batch.Passed, "", "")
}

// TestVerifyAgain: verifying a finished trial again from its directory gives the same
// verdict. Another verifier may disagree.
func TestVerifyAgain(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		definition := m.task("", hello)
		r, dir := m.run(definition, batch.Oracle)
		trials := batch.NewTrials(m.o)
		trial := batch.Trial{Key: batch.Key{Task: "task", Agent: batch.Oracle, Attempt: 1}, Definition: &definition}
		again := trials.Verify(t.Context(), trial, r, dir, filepath.Join(m.top, "again"))
		expect(t, "again", again, batch.Passed, "", "")
		must(t, os.WriteFile(filepath.Join(definition.Steps[0].Verifier.Tests, "test.sh"), []byte(check("false")), 0o755))
		other := trials.Verify(t.Context(), trial, r, dir, filepath.Join(m.top, "other"))
		expect(t, "another verifier", other, batch.Failed, "", "")
		if read(t, dir, "verifier/reward.txt") != "1\n" {
			t.Error("the first verdict is gone")
		}
		m.nothingLeft()
	})
}

// TestLines runs tasks from lines of JSON, with this machine's programs.
func TestLines(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		dir := write(t, t.TempDir(), map[string]string{
			"work/file": "before", "work/gone": "x", "tests/test.sh": "[ \"$(cat file)\" = after ] && [ ! -e gone ] && [ -e more/x ]\n",
			"tasks.jsonl": `{"id":"command","prompt":"Do it.","workspace":"work","verify":"sh -c '[ \"$(cat file)\" = after ] && [ ! -e gone ]'"}
{"id":"tests","prompt":"Do it.","workspace":"work","verify":{"tests":"tests"}}
{"id":"wrong","prompt":"Do it.","workspace":"work","verify":"false"}
{"id":"none","prompt":"Do it."}
`,
		})
		list, err := task.Load([]string{filepath.Join(dir, "tasks.jsonl")}, task.Options{})
		must(t, err)
		m.script("  - text: I do.\n    calls:\n      - tool: shell\n        input: {command: \"echo after > file; rm -f gone; mkdir more; touch more/x\"}\n  - text: Done.\n")
		for i, want := range []batch.Outcome{batch.Passed, batch.Passed, batch.Failed, batch.Failed} {
			r, _ := m.run(list[i], "model")
			class := batch.Class("")
			if list[i].ID == "none" {
				class = batch.UnverifiedOutcome
			}
			expect(t, list[i].ID, r, want, class, "")
		}
		if read(t, dir, "work/file") != "before" {
			t.Error("a trial changed the workspace of its task")
		}
	})
}

// TestForgedBytecode: the agent leaves bytecode that Python would run instead of the
// source, as the control shows. The verifier runs the source.
func TestForgedBytecode(t *testing.T) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("python3 is missing")
	}
	m := newMachine(t, "runc")
	dir := write(t, t.TempDir(), map[string]string{
		"work/work.py": "def right(): return False\n", "work/check.py": "import work\nprint('PASS' if work.right() else 'FAIL')\n",
		"work/forge.py": "import importlib._bootstrap_external as b, importlib.util as u, os\nos.makedirs('__pycache__')\n" +
			"code = compile('def right(): return True', 'work.py', 'exec')\nopen(u.cache_from_source('work.py'), 'wb').write(b._code_to_hash_pyc(code, b'12345678', False))\n",
		"tasks.jsonl": `{"id":"forged","prompt":"Do it.","workspace":"work","verify":"/usr/bin/python3 check.py && /usr/bin/python3 check.py | grep -q PASS"}`,
	})
	list, err := task.Load([]string{filepath.Join(dir, "tasks.jsonl")}, task.Options{})
	must(t, err)
	m.script("  - text: I forge.\n    calls:\n      - tool: shell\n        input: {command: \"/usr/bin/python3 forge.py; /usr/bin/python3 check.py > believed\"}\n  - text: Done.\n")
	r, trial := m.run(list[0], "model")
	expect(t, "forged", r, batch.Failed, "", "")
	if patch := read(t, trial, batch.PatchFile); !strings.Contains(patch, "+PASS") {
		t.Errorf("the forgery is not believed where it is: %s", patch)
	}
	if output := read(t, trial, batch.VerifierDir, batch.OutputFile); output != "FAIL\n" {
		t.Errorf("the verifier finds %q", output)
	}
}

func TestGit(t *testing.T) {
	m := newMachine(t, "runc")
	repository := write(t, filepath.Join(m.top, "repository"), map[string]string{"file": "in git"})
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x"}, {"config", "uploadpack.allowAnySHA1InWant", "true"}} {
		cmd := exec.Command("git", append([]string{"-C", repository}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	head, err := exec.Command("git", "-C", repository, "rev-parse", "HEAD").Output()
	must(t, err)
	file := filepath.Join(m.top, "t.jsonl")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `{"id":"x","prompt":"x","workspace":"git+file://%s@%s","verify":"grep -q 'in git' file"}`, repository, strings.TrimSpace(string(head))), 0o644))
	list, err := task.Load([]string{file}, task.Options{})
	must(t, err)
	r, _ := m.run(list[0], batch.Nop)
	expect(t, "git", r, batch.Passed, "", "")
}

// TestWorkdirs: a working directory at which nothing can be mounted is part of the
// root. A missing one is made.
func TestWorkdirs(t *testing.T) {
	m := newMachine(t, "runc")
	must(t, os.Symlink("/app", filepath.Join(m.root, "linked")))
	writeImage(t, m.root, m.image, v1.Config{WorkingDir: "/app", Env: []string{"PATH=/bin"}})
	for workdir, want := range map[string]string{"/": "/", "/linked": "/app", "/root": "/root", "/new/dir": "/new/dir"} {
		definition := m.task("[environment]\nworkdir = \""+workdir+"\"\n", map[string]string{
			"solution/solve.sh": solve("pwd -P > here; ls / > listing"), "tests/test.sh": check("[ \"$(cat here)\" = " + want + " ] && [ \"$(pwd -P)\" = " + want + " ] && grep -q app listing"),
		})
		r, _ := m.run(definition, batch.Oracle)
		expect(t, workdir, r, batch.Passed, "", "")
	}
}

// TestInfrastructure: what the machine can't do is not the agent's fault.
func TestInfrastructure(t *testing.T) {
	m := newMachine(t, "runc")
	definition := m.task("", hello)
	definition.Environment.Image = "docker-archive:" + filepath.Join(m.top, "absent.tar")
	r, _ := m.run(definition, batch.Oracle)
	expect(t, "image", r, batch.Infrastructure, batch.ImageUnavailable, "")

	fails := m.task("", map[string]string{"tests/test.sh": check("false"), "solution/solve.sh": "exit 7\n"})
	r, _ = m.run(fails, batch.Oracle)
	expect(t, "solution", r, batch.Failed, batch.SolutionFailed, "")
	r, _ = m.run(m.task("", map[string]string{"tests/test.sh": check("true")}), batch.Oracle)
	expect(t, "no solution", r, batch.Failed, batch.SolutionFailed, "")
	r, _ = m.run(fails, "model")
	expect(t, "no model", r, batch.Infrastructure, batch.Provider, "")

	m.o.Session.Backend = failing{}
	r, _ = m.run(fails, batch.Oracle)
	expect(t, "sandbox", r, batch.Infrastructure, batch.SandboxStart, "")
}

type failing struct{}

func (failing) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, fmt.Errorf("create: %w", sandbox.ErrUnavailable)
}

// TestCancelTrial: a stopped trial leaves nothing.
func TestCancelTrial(t *testing.T) {
	m := newMachine(t, "gvisor")
	definition := m.task("", map[string]string{"tests/test.sh": check("true"), "solution/solve.sh": "sleep 100\n"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r := batch.NewTrials(m.o).Run(ctx, batch.Trial{Key: batch.Key{Task: "task", Agent: batch.Oracle, Attempt: 1}, Definition: &definition}, t.TempDir(), nil)
	expect(t, "cancelled", r, batch.Cancelled, "", "")
	m.nothingLeft()
}

// TestSkillsOfTask: an image's skills reach the model as data, and a symlink in their
// directory leads to no file of this machine.
func TestSkillsOfTask(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		secret := filepath.Join(m.top, "secret")
		skill := func(name, text string) string {
			return "---\nname: " + name + "\ndescription: About " + name + ".\n---\n" + text + "\n"
		}
		must(t, os.WriteFile(secret, []byte(skill("stolen", "of this machine")), 0o644))
		write(t, m.root, map[string]string{"skills/greet/SKILL.md": skill("greet", "Write hi."), "skills/greet/more": "more\n"})
		must(t, os.MkdirAll(filepath.Join(m.root, "skills/stolen"), 0o755))
		must(t, os.Symlink(secret, filepath.Join(m.root, "skills/stolen/SKILL.md")))
		must(t, os.Symlink(m.top, filepath.Join(m.root, "linked")))
		writeImage(t, m.root, m.image, v1.Config{WorkingDir: "/app", Env: []string{"PATH=/bin"}})
		m.script("  - text: I load.\n    calls:\n      - tool: load_skill\n        input: {name: greet}\n        expect: {contains: Write hi.}\n      - tool: load_skill\n        input: {name: stolen}\n        expect: {not_contains: of this machine}\n      - tool: shell\n        input: {command: cat /skills/greet/more > copied}\n  - text: Done.\n")
		r, dir := m.run(m.task("[environment]\nskills_dir = \"/skills\"\n", map[string]string{"tests/test.sh": check("[ \"$(cat copied)\" = more ]")}), "model")
		expect(t, "skills", r, batch.Passed, "", "")
		records := read(t, dir, "session/trace.jsonl")
		if !strings.Contains(records, `"trust":"untrusted"`) || strings.Contains(records, `"trust":"operator"`) || strings.Contains(records, "of this machine") {
			t.Error("skills of the task count as the operator's, or have a file of this machine")
		}
		r, _ = m.run(m.task("[environment]\nskills_dir = \"/linked\"\n", map[string]string{"tests/test.sh": check("true")}), batch.Nop)
		expect(t, "a symlink", r, batch.Infrastructure, batch.ImageUnavailable, "")
	})
}
