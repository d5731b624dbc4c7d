package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/profiles/seccomp"

	"github.com/caisson-run/caisson/runner/batch"
)

// jobUser is the ordinary user of container jobs.
const jobUser = 10001

// containerJob is a container as a CI system makes it for a job.
type containerJob struct {
	name string
	user int
	// change changes what [jobKit.container] sets for the user; nil changes
	// nothing.
	change func(t *testing.T, h *container.HostConfig)
}

// containerJobs are containers in which no namespaces can be made.
var containerJobs = []containerJob{
	{"root", 0, nil},
	{"user", jobUser, nil},
	{"user with limits", jobUser, func(_ *testing.T, h *container.HostConfig) {
		h.Memory, h.PidsLimit = 512<<20, new(int64(256))
	}},
	{"root with Docker's newest profile", 0, useDockerProfile},
	{"user with Docker's newest profile", jobUser, useDockerProfile},
	{"user with containerd's profile", jobUser, func(t *testing.T, h *container.HostConfig) {
		if runtime.GOARCH != "amd64" {
			t.Skip("the profile is for amd64") // .ci/deploy, TestContainerdSeccomp
		}
		text := readFile(t, filepath.Join("testdata", "seccomp-containerd.json"))
		h.SecurityOpt = append(h.SecurityOpt, "seccomp="+string(text))
	}},
}

// useDockerProfile sets the seccomp profile of Docker 29, which the engine may be
// too old to have.
func useDockerProfile(t *testing.T, h *container.HostConfig) {
	t.Helper()
	h.SecurityOpt = append(h.SecurityOpt, "seccomp="+mustJSON(t, seccomp.DefaultProfile()))
}

// jobKit is what jobs need: programs in bin, and in dir a project, scripts of
// models, tasks and their image.
type jobKit struct {
	bin   string
	dir   string
	image string
	port  int // of the registry that each job starts
}

// jobPrograms are in the containers of jobs besides imagePrograms.
var jobPrograms = []string{
	"git", "cp", "rm", "mv", "ln", "chmod", "stat", "find", "sort", "sleep", "env", "grep", "wc", "dirname", "rmdir",
}

func newJobKit(t *testing.T) *jobKit {
	t.Helper()
	needBackend(t, "docker")
	needBackend(t, "gvisor")
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be several users")
	}
	bin, err := jobHelper()
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	files := userland(t, jobPrograms...)
	files["usr/share/job"] = nil // the image host needs a /usr
	k := &jobKit{bin: bin, dir: filepath.Join(filepath.Dir(m.home), "kit"), image: engineImage(t, files), port: freePort(t)}
	at := func(name string) string { return filepath.Join(k.dir, name) }
	err = errors.Join(os.Mkdir(k.dir, 0o755),
		os.CopyFS(at("project"), os.DirFS(filepath.Join("..", "examples", "greeting", "workspace"))),
		os.CopyFS(at("scripts"), os.DirFS(filepath.Join("testdata", "jobscripts"))),
		copyIfThere(filepath.Join("..", "examples", "greeting", "script.yaml"), at("scripts/greeting.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	commit := exec.CommandContext(t.Context(), "sh", "-c", "mkdir docs lib && echo x >docs/old && echo y >lib/file && git init -q && git add . && git -c user.name=a -c user.email=a@example.org commit -qm one")
	commit.Dir = at("project")
	if out, err := commit.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	k.writeTasks(t)
	return k
}

// jobHelper builds testdata/jobhelper beside the programs of Caisson, once.
var jobHelper = sync.OnceValues(func() (string, error) {
	dir, err := builtOnce()
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, "jobhelper"), "./testdata/jobhelper")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build jobhelper: %w: %s", err, out)
	}
	return dir, nil
})

// taskImage is the image of the kit's task.
func (k *jobKit) taskImage() string { return fmt.Sprintf("localhost:%d/team/task:1", k.port) }

// writeTasks writes a Harbor task, and its image as an archive.
func (k *jobKit) writeTasks(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{
		"task.toml":         "version = \"1.0\"\n[environment]\ndocker_image = \"" + k.taskImage() + "\"\nmemory = \"128M\"\nstorage = \"1G\"\nworkdir = \"/app\"\n",
		"instruction.md":    "Write hello to hello.txt.\n",
		"solution/solve.sh": "#!/bin/sh\necho hello > hello.txt\n",
		"tests/test.sh":     "#!/bin/sh\nread a < hello.txt; read b < given\nif [ \"$a$b\" = hellogiven ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
	} {
		path := filepath.Join(k.dir, "tasks", "hello", name)
		writeFile(t, path, text, 0o644)
	}
	files := userland(t, "sleep", "rm", "chmod", "ln")
	files["app/given"] = []byte("given\n")
	tag, err := name.NewTag(k.taskImage())
	if err == nil {
		err = tarball.WriteToFile(filepath.Join(k.dir, "task.tar"), tag, imageOf(t, files, nil))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// jobPlace is where a job runs: in a container, or on the host.
type jobPlace struct {
	user     int
	bin, kit string // the kit's directories, as the job sees them
	dir      string // the job's own directory, with its home and project
	// begin starts a program as the job's user.
	begin func(t testing.TB, env, argv []string) *jobProcess
	// container is its id and api its engine's. On the host they are empty.
	container string
	api       *client.Client
}

func (p *jobPlace) home() string    { return filepath.Join(p.dir, "home") }
func (p *jobPlace) project() string { return filepath.Join(p.dir, "project") }
func (p *jobPlace) state() string   { return filepath.Join(p.home(), ".local", "state", "caisson") }

func (p *jobPlace) environ() []string {
	return []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + p.home(), "LANG=C.UTF-8", "CI=1", "TERM=xterm-256color"}
}

// settle makes the job's directories, with a copy of the project.
func (p *jobPlace) settle(t testing.TB) {
	t.Helper()
	p.sh(t, fmt.Sprintf("mkdir -p %s %s && cp -R %s/project/. %[2]s", p.home(), p.project(), p.kit)).want(t, 0)
}

// jobProcess is a program of a job that was started.
type jobProcess struct {
	stdout, stderr *follower
	ended          chan struct{}
	status         int
	err            error
}

func (j *jobProcess) wait(t testing.TB) outcome {
	t.Helper()
	select {
	case <-j.ended:
	case <-time.After(deadline):
		t.Fatalf("the job's program did not end within %s\n%s\n%s", deadline, tail(j.stdout.String(), 10), j.stderr)
	}
	if j.err != nil {
		t.Fatal(j.err)
	}
	return outcome{status: j.status, stdout: j.stdout.String(), stderr: j.stderr.String()}
}

// await waits until the program has written a text to standard output.
func (j *jobProcess) await(t testing.TB, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q on standard output", text), deadline, func() bool {
		if strings.Contains(j.stdout.String(), text) {
			return true
		}
		select {
		case <-j.ended:
			t.Fatalf("the job's program ended with %d, %v, without %q\n%s\n%s", j.status, j.err, text, j.stdout, j.stderr)
		default:
		}
		return false
	})
}

// sh runs a script as the job's user.
func (p *jobPlace) sh(t testing.TB, script string) outcome {
	t.Helper()
	return p.begin(t, nil, []string{"/bin/sh", "-c", script}).wait(t)
}

func (p *jobPlace) helper(args ...string) []string {
	return append([]string{filepath.Join(p.bin, "jobhelper")}, args...)
}

func (p *jobPlace) caisson(args ...string) []string {
	return append([]string{filepath.Join(p.bin, "caisson")}, args...)
}

// on are the arguments of a command of Caisson on the job's project.
func (p *jobPlace) on(command string, args ...string) []string {
	return p.caisson(append([]string{command, "--workspace", p.project(), "--backend", "gvisor"}, args...)...)
}

func (p *jobPlace) run(t testing.TB, argv []string) outcome {
	t.Helper()
	return p.begin(t, nil, argv).wait(t)
}

// exec runs a shell's script in a sandbox on the job's project.
func (p *jobPlace) exec(t testing.TB, script string, flags ...string) outcome {
	t.Helper()
	return p.run(t, p.on("exec", slices.Concat(flags, []string{"--", "sh", "-c", script})...))
}

// processes lists the processes of a container except its init and its own.
func (p *jobPlace) processes(t testing.TB) (list []jobListed) {
	t.Helper()
	out := p.run(t, p.helper("processes"))
	if err := json.Unmarshal([]byte(out.stdout), &list); err != nil {
		t.Fatalf("%v: %s%s", err, out.stdout, out.stderr)
	}
	return slices.DeleteFunc(list, func(l jobListed) bool { return l.PID == 1 })
}

type jobListed struct {
	PID, Parent   int
	Name, Command string
}

// host makes a job on the host, of an ordinary user, where gVisor has namespaces.
func (k *jobKit) host(t *testing.T) *jobPlace {
	t.Helper()
	m := newMachine(t)
	m.become(t, jobUser, jobUser)
	p := &jobPlace{user: jobUser, bin: k.bin, kit: k.dir, dir: m.home}
	p.begin = func(t testing.TB, env, argv []string) *jobProcess {
		t.Helper()
		j := &jobProcess{stdout: new(follower), stderr: new(follower), ended: make(chan struct{})}
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(t.Context()), 10*time.Minute, errors.New("a job's program does not end"))
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(p.environ(), env...), m.home, j.stdout, j.stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: m.user}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(j.ended)
			err := cmd.Wait()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
				j.err = err
			}
			j.status = cmd.ProcessState.ExitCode()
		}()
		t.Cleanup(func() {
			cancel()
			<-j.ended
		})
		return j
	}
	p.settle(t)
	return p
}

// container starts the container of a job. That of an ordinary user is as
// restricted as can be, with a volume for the job's directory; that of root has
// nothing but its own root file system.
func (k *jobKit) container(t *testing.T, job containerJob) *jobPlace {
	t.Helper()
	p := &jobPlace{user: job.user, bin: "/opt/caisson", kit: "/opt/kit", dir: "/builds", api: engine(t)}
	h := &container.HostConfig{Mounts: []mount.Mount{
		{Type: mount.TypeBind, Source: k.bin, Target: p.bin, ReadOnly: true}, {Type: mount.TypeBind, Source: k.dir, Target: p.kit, ReadOnly: true},
	}}
	if job.user != 0 {
		volume := filepath.Join(t.TempDir(), "builds")
		if err := errors.Join(os.Mkdir(volume, 0o755), os.Chown(volume, job.user, job.user)); err != nil {
			t.Fatal(err)
		}
		h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: volume, Target: p.dir})
		h.CapDrop, h.SecurityOpt = []string{"ALL"}, []string{"no-new-privileges"}
		h.ReadonlyRootfs, h.Tmpfs = true, map[string]string{"/tmp": "exec"}
	}
	if job.change != nil {
		job.change(t, h)
	}
	created, err := p.api.ContainerCreate(t.Context(), &container.Config{
		Image: k.image, Cmd: p.helper("init"), User: fmt.Sprintf("%d:%[1]d", job.user), Env: p.environ(), Labels: map[string]string{"test": t.Name()},
	}, h, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	p.container = created.ID
	t.Cleanup(func() {
		if err := p.api.ContainerRemove(context.Background(), p.container, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			t.Errorf("remove the job's container: %v", err)
		}
	})
	p.begin = p.beginInside
	p.startContainer(t)
	p.settle(t)
	return p
}

func (p *jobPlace) startContainer(t testing.TB) {
	t.Helper()
	if err := p.api.ContainerStart(t.Context(), p.container, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
}

// beginInside starts a program in the job's container.
func (p *jobPlace) beginInside(t testing.TB, env, argv []string) *jobProcess {
	t.Helper()
	j := &jobProcess{stdout: new(follower), stderr: new(follower), ended: make(chan struct{})}
	ctx := context.WithoutCancel(t.Context())
	created, err := p.api.ContainerExecCreate(ctx, p.container, container.ExecOptions{Cmd: argv, Env: env, AttachStdout: true, AttachStderr: true})
	if err != nil {
		t.Fatal(err)
	}
	attached, err := p.api.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(j.ended)
		defer attached.Close()
		if _, j.err = stdcopy.StdCopy(j.stdout, j.stderr, attached.Reader); j.err != nil {
			return
		}
		inspected, err := p.api.ContainerExecInspect(ctx, created.ID)
		j.status, j.err = inspected.ExitCode, err
	}()
	return j
}

// TestContainerJobs does in each container what users do with Caisson: commands,
// a task with a scripted model, changes to diff and to apply, trials, a chat.
// All is as for an ordinary user of the host, where gVisor has namespaces. The
// control: no namespaces can be made in the containers, and without them Caisson
// refuses.
func TestContainerJobs(t *testing.T) {
	t.Parallel()
	kit := newJobKit(t)
	host := kit.host(t)
	if out := host.run(t, host.helper("namespaces")); !strings.Contains(out.stdout, "user namespace: made\n") {
		t.Fatalf("control: no namespaces on the host either: %s%s", out.stdout, out.stderr)
	}
	want := host.tour(t, kit, "namespaces")
	for name, parts := range map[string][]string{
		"exec: output": {"status 0\nout\n10001\n", "err"}, "exec: status": {"status 7\n"}, "exec: no program": {"status 127\n"}, "exec: time": {"status 124\n"},
		"file": {"the job's\nthe job's\n", "-rw-r--r--", "x\n"}, "git": {"status 2\n1\n", "cannot create .git/x: Read-only file system"},
		"run": {"status 0\n", "tool.completed"}, "project after run": {`+for name in "$@"`},
		"overlay": {"status 0\n"}, "diff": {"+changed", "deleted file", "new file", "+++ b/moved/file"}, "apply": {"status 0\n"}, "project after apply": {"changed"},
		"batch": {"status 60\n", "hello oracle: passed 1 \n", "hello nop: failed 0 \n", "hostile.yaml: failed 0 "}, "chat": {"status 0\n"},
	} {
		for _, part := range parts {
			if !strings.Contains(want[name], part) {
				t.Errorf("on the host, %s lacks %q:\n%s", name, part, want[name])
			}
		}
	}
	for _, job := range containerJobs {
		t.Run(job.name, func(t *testing.T) {
			t.Parallel()
			p := kit.container(t, job)
			out := p.run(t, p.helper("namespaces"))
			if want := "operation not permitted"; strings.Count(out.stdout, want) != 2 {
				t.Fatalf("control: namespaces can be made in the container: %s%s", out.stdout, out.stderr)
			}
			refused := p.exec(t, "echo ran", "--isolation", "namespaces")
			if refused.status != 125 || refused.stdout != "" || !strings.Contains(refused.stderr, "may not make the namespaces and mounts of a sandbox") {
				t.Errorf("control: with namespaces: status %d, %s%s", refused.status, refused.stdout, refused.stderr)
			}
			if diff := cmp.Diff(want, p.tour(t, kit, "process")); diff != "" {
				t.Errorf("not as on the host (-host +container):\n%s", diff)
			}
			p.wantNothingLeft(t)
		})
	}
}

// tour does the work of [TestContainerJobs], and returns what came of each part.
func (p *jobPlace) tour(t *testing.T, kit *jobKit, isolation string) map[string]string {
	t.Helper()
	facts := map[string]string{}
	note := func(name string, o outcome) { facts[name] = p.words(fmt.Sprintf("status %d\n%s", o.status, o.stdout)) }

	out := p.exec(t, "echo out; echo err >&2; id -u; pwd")
	note("exec: output", out)
	if strings.Contains(out.stderr, "err\n") {
		facts["exec: output"] += "err"
	}
	note("exec: status", p.exec(t, "exit 7"))
	note("exec: no program", p.run(t, p.on("exec", "--", "no-such-program")))
	note("exec: time", p.exec(t, "sleep 1000 & sleep 1000", "--timeout", "1s"))

	p.exec(t, "umask 022; echo x >made; mkdir directory; echo y >directory/file").want(t, 0)
	note("file", p.sh(t, "cd "+p.project()+`; for f in made directory/file; do [ "$(stat -c %u $f)" = "$(id -u)" ] && echo "the job's"; done
		stat -c %A made directory; cat made directory/file; rm -r made directory`))
	note("git", p.exec(t, `exec 2>&1; git log --oneline | wc -l; echo x >.git/x; echo x >>.git/config; mv .git moved; rm -rf .git/objects
		[ -e .git/HEAD ] && git -c safe.directory='*' status --short; echo hand-made >.git/hooks/pre-commit`))
	if out := p.sh(t, "cd "+p.project()+"; echo x >.git/x && cat .git/x && rm .git/x"); out.stdout != "x\n" {
		t.Errorf("control: .git can't be written outside of the sandbox: %s%s", out.stdout, out.stderr)
	}

	task := func(script string, flags ...string) outcome {
		return p.run(t, p.on("run", slices.Concat(flags, []string{"--policy", "ci", "--json", "--model", "replay/" + filepath.Join(p.kit, "scripts", script), "do what the script says"})...))
	}
	out = task("greeting.yaml", "--replay-strict")
	note("run", outcome{status: out.status, stdout: strings.Join(p.records(t, out, isolation), "\n")})
	note("project after run", p.sh(t, "cd "+p.project()+"; git diff"))
	p.sh(t, "cd "+p.project()+"; git checkout -q .").want(t, 0)

	out = task("changes.yaml", "--mode", "overlay")
	note("overlay", outcome{status: out.status, stdout: strings.Join(p.records(t, out, isolation), "\n")})
	note("diff", p.run(t, p.caisson("diff", "--workspace", p.project())))
	note("project before apply", p.sh(t, "cd "+p.project()+"; git status --short"))
	note("apply", p.run(t, p.caisson("apply", "--workspace", p.project())))
	note("project after apply", p.sh(t, "cd "+p.project()+"; find . -path ./.git -prune -o -printf '%p %M %l\\n' | sort; git diff"))

	facts["batch"] = p.batch(t, kit)

	chat := p.on("chat", "--mode", "bind", "--policy", "ci", "--model", "replay/"+filepath.Join(p.kit, "scripts", "chat.yaml"))
	out = p.run(t, p.helper(slices.Concat([]string{"terminal", "› ", "begin\r", "that is all", "\x15/quit\r", "--"}, chat)...))
	if out.status != 0 {
		t.Errorf("chat: %s%s", out.stdout, out.stderr)
	}
	note("chat", outcome{status: out.status, stdout: p.sh(t, "cat "+p.project()+"/from-chat").stdout})
	return facts
}

// words replaces what differs from place to place.
func (p *jobPlace) words(text string) string {
	return strings.NewReplacer(p.kit, "KIT", p.project(), "PROJECT", p.home(), "HOME", fmt.Sprintf(`"client":"uid:%d"`, p.user), `"client":"USER"`).Replace(text)
}

// records returns the records of a run so that those of two places are the same.
// It fails the test if the sandbox has another isolation, or none was recorded.
func (p *jobPlace) records(t *testing.T, out outcome, isolation string) []string {
	t.Helper()
	all := readRecords(t, out.stdout)
	started := all.of("sandbox.started")
	if len(started) != 1 {
		t.Errorf("%d sandboxes were started: status %d, %s", len(started), out.status, out.stderr)
		return nil
	}
	var payload struct{ Attestation struct{ Isolation string } }
	if err := json.Unmarshal(started[0].Payload, &payload); err != nil || payload.Attestation.Isolation != isolation {
		t.Errorf("attested isolation %q, %v, want %q", payload.Attestation.Isolation, err, isolation)
	}
	return all.comparable(t, &machine{workspace: p.project()})
}

// batch runs the kit's task with its solution, without work, and with an agent
// that forges the verdict, and returns their outcomes.
func (p *jobPlace) batch(t *testing.T, k *jobKit) string {
	t.Helper()
	registry := p.helper("registry", fmt.Sprintf("127.0.0.1:%d", k.port), k.taskImage(), filepath.Join(p.kit, "task.tar"))
	p.sh(t, fmt.Sprintf("%s >%s & until grep -q ready %[2]s; do sleep 0.1; done; %s; s=$?; kill $!; exit $s",
		strings.Join(registry, " "), filepath.Join(p.dir, "registry"), strings.Join(p.caisson("images", "pull", k.taskImage()), " "))).want(t, 0)
	dir := filepath.Join(p.dir, "batch")
	out := p.run(t, p.caisson("batch", "--out", dir, "--backend", "gvisor", "--parallel", "1", "--agent", "oracle", "--agent", "nop",
		"--model", "replay/"+filepath.Join(p.kit, "scripts", "hostile.yaml"), filepath.Join(p.kit, "tasks")))
	var lines []string
	for line := range strings.Lines(p.sh(t, "cat "+filepath.Join(dir, batch.ResultsFile)).stdout) {
		var r batch.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Reward == nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines = append(lines, p.words(fmt.Sprintf("%s %s: %s %g %s\n", r.Task, r.Agent, r.Outcome, *r.Reward, r.Class)))
	}
	if len(lines) != 3 {
		t.Fatalf("%d results: status %d, %s%s", len(lines), out.status, out.stdout, out.stderr)
	}
	slices.Sort(lines)
	return fmt.Sprintf("status %d\n%s", out.status, strings.Join(lines, ""))
}

// wantNothingLeft fails the test if the container still has anything of a session:
// processes, or files other than records.
func (p *jobPlace) wantNothingLeft(t testing.TB) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("left behind:\n  %s", strings.Join(left, "\n  "))
		}
	}()
	eventually(t, "nothing is left of the sessions", time.Minute, func() bool {
		left = p.leftovers(t)
		return len(left) == 0
	})
}

func (p *jobPlace) leftovers(t testing.TB) (left []string) {
	t.Helper()
	for _, l := range p.processes(t) {
		if l.Name != "jobhelper" {
			left = append(left, fmt.Sprintf("process %d %s: %s", l.PID, l.Name, l.Command))
		}
	}
	out := p.sh(t, "cd "+p.state()+` && find cleanup oci/gvisor sessions -mindepth 1 '(' -path 'cleanup/*.json' -o -path 'oci/gvisor/*' -o -name config.json -o -name '*.sock' -o -name rootfs ')'`)
	return append(left, strings.Fields(out.stdout)...)
}
