package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/google/go-cmp/cmp"
)

// suiteTime bounds a run of the conformance suite in a job.
const suiteTime = 10 * time.Minute

// checksLeftOut are the checks of the conformance suite that a job of an ordinary
// user skips, with the test that takes their place. The first two skip only their
// positive control: outside of the sandbox, this job may do as little as inside.
var checksLeftOut = map[string]string{
	"forbidden_system_calls_fail":  "TestProcessIsolation of sandbox/oci has the control, as an ordinary user of the host",
	"an_exec_gains_nothing":        "the same",
	"planted_privilege_gives_none": "only root can plant it: TestProcessIsolation as root",
}

// suiteJob is a restricted job whose image has this machine's programs. Its TMPDIR
// is on its volume.
var suiteJob = containerJob{"suite", jobUser, func(_ *testing.T, h *container.HostConfig) {
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc/alternatives"} {
		if _, err := os.Stat(dir); err == nil {
			h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: dir, Target: dir, ReadOnly: true})
		}
	}
}}

// TestContainerJobConformance runs the conformance suite, with its sandboxes and all, in the most
// restricted job. The control adds faults to the sandboxes there, which it must
// find.
func TestContainerJobConformance(t *testing.T) {
	t.Parallel()
	kit := newJobKit(t)
	kit.addSuite(t)
	p := kit.container(t, suiteJob)
	p.sh(t, "mkdir "+filepath.Join(p.dir, "tmp")).want(t, 0)
	suite := filepath.Join(p.kit, "suite")
	run := func(test string) string {
		j := p.begin(t, []string{
			"CAISSON_OCI_USER=" + suite, "CAISSON_OCI_JOB=1", "TMPDIR=" + filepath.Join(p.dir, "tmp"), "PATH=" + suite + ":/usr/bin:/bin", "REQUIRE_BACKENDS=gvisor", "SAMPLE=" + os.Getenv("SAMPLE"),
		}, []string{filepath.Join(suite, "test"), "-test.v", "-test.run=" + test, "-test.parallel=4"})
		select {
		case <-j.ended:
		case <-time.After(suiteTime):
			t.Fatalf("%s did not end within %s\n%s", test, suiteTime, tail(j.stdout.String(), 30))
		}
		if j.err != nil || j.status != 0 {
			t.Errorf("%s: status %d, %v\n%s%s", test, j.status, j.err, j.stdout, j.stderr)
		}
		return j.stdout.String()
	}
	out := run("^TestUserProcess$/^gvisor$")
	sample, least := os.Getenv("SAMPLE") != "", 100
	if sample {
		least = 6
	}
	if n := strings.Count(out, "--- PASS: TestUserProcess/gvisor/"); n < least {
		t.Errorf("%d checks passed, want at least %d\n%s", n, least, out)
	}
	var skipped, want []string
	for _, m := range regexp.MustCompile(`--- SKIP: TestUserProcess/gvisor/(\S+)`).FindAllStringSubmatch(out, -1) {
		skipped = append(skipped, m[1])
	}
	for name := range checksLeftOut {
		if !sample || slices.Contains(skipped, name) {
			want = append(want, name)
		}
	}
	slices.Sort(skipped)
	slices.Sort(want)
	if diff := cmp.Diff(want, skipped); diff != "" {
		t.Errorf("checks left out (-want +got):\n%s\n%s", diff, out)
	}
	if out := run("^TestUserFaults$"); strings.Count(out, "--- PASS: TestUserFaults/") < 6 || strings.Contains(out, "--- SKIP") {
		t.Errorf("control: too few faults were found\n%s", out)
	}
	p.wantNoProcesses(t)
}

// addSuite builds the tests of sandbox/oci, and the programs that they need, in the
// kit.
func (k *jobKit) addSuite(t *testing.T) {
	t.Helper()
	dir := filepath.Join(k.dir, "suite")
	if err := errors.Join(os.Mkdir(dir, 0o755), copyIfThere(filepath.Join(k.bin, "caisson-guest"), filepath.Join(dir, "guest")),
		copyIfThere(filepath.Join(k.bin, "runsc"), filepath.Join(dir, "runsc"))); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"test", "-c", "-o", "test", "sandbox/oci"}, {"build", "-o", "probe", "sandbox/sandboxtest/probe"}, {"build", "-o", "shell", "sandbox/oci/testdata/shell"},
	} {
		last := len(args) - 1
		args[last-1] = filepath.Join(dir, args[last-1])
		args[last] = "../" + args[last]
		build := exec.CommandContext(t.Context(), "go", slices.Insert(args, 1, "-trimpath", "-buildvcs=false", "-ldflags=-s -w")...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
}
