package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// jobSecretVariable is in the environment of the job's processes.
const jobSecretVariable = "E2E_JOB_SECRET"

// jobBait is a process of the job with files beside the workspace, which attackers
// want (testdata/jobhelper/bait.go).
type jobBait struct {
	run    *jobProcess
	text   string // its description, for the attackers
	dir    string
	pid    int
	secret string
}

func (p *jobPlace) bait(t *testing.T) jobBait {
	t.Helper()
	b := jobBait{dir: filepath.Join(p.dir, "outside"), secret: secret()}
	p.sh(t, "mkdir "+b.dir).want(t, 0)
	b.run = p.begin(t, []string{jobSecretVariable + "=" + b.secret}, p.helper("bait", b.dir, p.project(), "bait-"+b.secret[:8], b.secret))
	b.run.await(t, "}\n")
	b.text, _, _ = strings.Cut(b.run.stdout.String(), "\n")
	b.pid = parse[struct{ PID int }](t, b.text).PID
	return b
}

// look lists what the attacks may have changed: the bait's directory and what it
// heard, and files of the project that no sandbox may make.
func (p *jobPlace) look(t *testing.T, b jobBait) (outside, made string) {
	t.Helper()
	list := p.sh(t, "find "+b.dir+` -printf '%p %M %U %n %s %T@ %l\n' | sort`)
	list.want(t, 0)
	found := p.sh(t, "find "+p.project()+` '(' -perm /6000 -o -type b -o -type c ')' -printf '%P %y\n' | sort`)
	found.want(t, 0)
	return list.stdout + strings.Repeat("signalled\n", strings.Count(b.run.stdout.String(), "signalled")), found.stdout
}

// inside are the arguments that run a verb of the helper in a sandbox, in which the
// project has the path that it has outside.
func (p *jobPlace) inside(args ...string) []string {
	return p.on("exec", slices.Concat([]string{"--workdir", p.project(), "--mount", p.bin + ":" + p.bin + ":ro", "--"}, p.helper(args...))...)
}

// answer runs a verb of the helper that prints JSON.
func answer[T any](t *testing.T, p *jobPlace, argv []string) (v T) {
	t.Helper()
	out := p.run(t, argv)
	if err := json.Unmarshal([]byte(out.stdout), &v); err != nil {
		t.Fatalf("%v: status %d, %s%s", err, out.status, out.stdout, out.stderr)
	}
	return v
}

// mayFailOutside are attempts that the container itself, or a file system, may
// refuse, so they prove nothing there.
var mayFailOutside = []string{"memory by process_vm_readv", "attribute through a symlink"}

// attackedJobs are the jobs that attacks run in. Docker's newest profile forbids
// them less than the engine's may.
func attackedJobs() []containerJob {
	return slices.DeleteFunc(slices.Clone(containerJobs), func(j containerJob) bool {
		return j.name != "root" && j.name != "user with Docker's newest profile"
	})
}

// TestContainerJobAttacks attacks the rest of a job from a sandbox: its files beside
// the workspace by symlinks, hard links and races, its sockets and FIFOs, its
// processes and their memory and environment. The control is the same attacker
// without a sandbox, who reaches everything.
func TestContainerJobAttacks(t *testing.T) {
	t.Parallel()
	kit := newJobKit(t)
	for _, job := range attackedJobs() {
		t.Run(job.name, func(t *testing.T) {
			t.Parallel()
			p := kit.container(t, job)
			b := p.bait(t)
			outside, made := p.look(t, b)
			race := func(argv []string) map[string]int64 {
				exchange := p.begin(t, nil, p.helper("exchange", filepath.Join(p.project(), "swapped"), filepath.Join(p.project(), "swapping"), "3s"))
				exchange.await(t, "ready")
				counts := answer[map[string]int64](t, p, argv)
				exchange.wait(t).want(t, 0)
				if counts["opened"] < 100 {
					t.Errorf("the race was hardly run: %v", counts)
				}
				return counts
			}
			for name, result := range answer[map[string]string](t, p, p.inside("attack", b.text)) {
				if result == "reached" && name != "signal" { // it may have hit a process of the sandbox
					t.Errorf("%s reaches the job", name)
				}
			}
			if counts := race(p.inside("race", b.text, "2s")); counts["reached"] > 0 {
				t.Errorf("the races reach the job: %v", counts)
			}
			nowOutside, nowMade := p.look(t, b)
			if diff := cmp.Diff(outside, nowOutside); diff != "" {
				t.Errorf("the job's directory changed:\n%s", diff)
			}
			if diff := cmp.Diff(made, nowMade); diff != "" {
				t.Errorf("the sandbox made:\n%s", diff)
			}

			for name, result := range answer[map[string]string](t, p, p.helper("attack", b.text)) {
				if result != "reached" && slices.Contains(mayFailOutside, name) {
					t.Logf("control: %s fails outside: %s", name, result)
				} else if result != "reached" {
					t.Errorf("control: %s fails without a sandbox too: %s", name, result)
				}
			}
			if counts := race(p.helper("race", b.text, "2s")); counts["reached"] == 0 {
				t.Errorf("control: the races reach nothing without a sandbox: %v", counts)
			}
			nowOutside, nowMade = p.look(t, b)
			for _, name := range []string{"/written", "/through", "/dangling", "/renamed", "/linked", "/made", "signalled"} {
				if !strings.Contains(nowOutside, name) {
					t.Errorf("control: no %s without a sandbox:\n%s", name, nowOutside)
				}
			}
			if !strings.Contains(nowMade, "setuid f\n") || job.user == 0 && !strings.Contains(nowMade, "device c\n") {
				t.Errorf("control: without a sandbox the attacker made only %q", nowMade)
			}
		})
	}
}

// TestContainerJobNeighbours reads a sandbox's processes as another process of
// the job's user: the environment, memory and descriptors of sentry and gofer are
// closed to it. The control is the same on a process of the job. They don't have
// the job's environment either.
func TestContainerJobNeighbours(t *testing.T) {
	t.Parallel()
	kit := newJobKit(t)
	for _, job := range attackedJobs() {
		t.Run(job.name, func(t *testing.T) {
			t.Parallel()
			p := kit.container(t, job)
			b := p.bait(t)
			run := p.live(t, jobSecretVariable+"="+b.secret)
			all := p.processes(t)
			sentry, gofer := sentryOf(all), goferOf(all)
			found := answer[map[int]map[string]string](t, p, p.helper("reach", strconv.Itoa(b.pid), strconv.Itoa(sentry.PID), strconv.Itoa(gofer.PID)))
			control := found[b.pid]
			for _, name := range []string{"environ", "maps", "mem", "fd", "root", "cwd", "exe", "trace"} {
				if control[name] != "reached" {
					t.Errorf("control: %s of a process of the job: %s", name, control[name])
				}
			}
			for _, l := range []jobListed{sentry, gofer} {
				if len(found[l.PID]) != len(control) {
					t.Errorf("%d attempts at %.20s, %d at the control", len(found[l.PID]), l.Command, len(control))
				}
				for name, result := range found[l.PID] {
					if result == "reached" {
						t.Errorf("%s of %.20s is open to the job's user", name, l.Command)
					}
				}
			}
			p.wantNoSecret(t, b)
			p.sh(t, "kill "+strconv.Itoa(caissonOf(all).PID)).want(t, 0)
			run.wait(t)
			p.wantNothingLeft(t)
		})
	}
}

// wantNoSecret looks at all processes of the container from the host, as root. The
// sandbox's must not have the job's environment, of which Caisson's is the control.
func (p *jobPlace) wantNoSecret(t *testing.T, b jobBait) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, e := range entries {
		at := func(name string) []byte {
			text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), name)) // it may have ended
			return text
		}
		if !bytes.Contains(at("cgroup"), []byte(p.container)) {
			continue
		}
		command, _, _ := strings.Cut(string(at("cmdline")), "\x00")
		name := filepath.Base(command)
		have[name] = have[name] || bytes.Contains(at("environ"), []byte(b.secret))
	}
	for _, name := range []string{"caisson", "jobhelper"} {
		if !have[name] {
			t.Errorf("control: %s lacks the job's environment: %v", name, have)
		}
	}
	for _, name := range []string{"runsc-sandbox", "runsc-gofer"} {
		if has, ok := have[name]; has || !ok {
			t.Errorf("%s has the job's environment: %t, is there: %t", name, has, ok)
		}
	}
}
