package oci

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// userID is the ordinary user that root's tests become. It needs no account.
const userID = 1000

// TestOrdinaryUser repeats the suite without any privilege, as another user if
// this is root.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	bothAtOnce(t, func(t *testing.T, k Kind) {
		asUserWith(t, k, "TestUser", func(dir string) {
			must(t, copyProgram(filepath.Join(shellRoot(t), "bin/sh"), filepath.Join(dir, shellProgram)))
		})
	})
}

// TestProcessIsolation repeats the suite without namespaces, as this user and
// as another one.
func TestProcessIsolation(t *testing.T) {
	t.Parallel()
	t.Run("self", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, GVisor, os.Geteuid())
		b.backend.options.Isolation = sandbox.IsolationProcess
		addUserImages(t, b)
		target := conformanceTarget(b)
		addWritableImage(t, &target)
		target.Brief, target.SameInside = true, true
		sandboxtest.Run(t, target)
	})
	t.Run("user", func(t *testing.T) {
		t.Parallel()
		needRoot(t)
		asUserWith(t, GVisor, "TestUserProcess", func(dir string) {
			must(t, copyProgram(filepath.Join(shellRoot(t), "bin/sh"), filepath.Join(dir, shellProgram)))
		})
	})
}

const shellProgram = "shell"

var startUser = (*exec.Cmd).Start

// asUser runs one of this binary's tests as an ordinary user for each kind. In
// the user's directory, add makes what only root can.
func asUser(t *testing.T, test string, add func(dir string)) {
	t.Helper()
	needRoot(t)
	both(t, func(t *testing.T, k Kind) { asUserWith(t, k, test, add) })
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user; the other tests are an ordinary user's here")
	}
}

// asUserWith is asUser for one kind.
func asUserWith(t *testing.T, k Kind, test string, add func(dir string)) {
	t.Helper()
	asUserBelow(t, "", k, test, add)
}

// asUserBelow is asUserWith with the user's directory below another one.
func asUserBelow(t *testing.T, parent string, k Kind, test string, add func(dir string), env ...string) {
	t.Helper()
	path := runtimePath(t, k)
	dir, err := os.MkdirTemp(parent, "caisson-user-") //nolint:usetesting // the directory above t.TempDir is closed to others
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chown(dir, userID, userID))
	for name, from := range map[string]string{"test": os.Args[0], "guest": guestPath(t), runtimeName(k): path, "probe": sandboxtest.BuildProbe(t)} {
		must(t, copyProgram(from, filepath.Join(dir, name)))
	}
	add(dir)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.v", "-test.run=^"+test+"$/^"+string(k)+"$")
	cmd.Dir = dir
	cmd.Env = []string{userHelper + "=" + dir, "TMPDIR=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH"), "REQUIRE_BACKENDS=" + string(k), "SAMPLE=" + os.Getenv("SAMPLE")}
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userID, Gid: userID}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = startUser(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	t.Logf("%s", &out)
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+test+"/"+string(k)) {
		t.Errorf("as uid %d: %v", userID, err)
	}
}

// TestUser is run by TestOrdinaryUser as another user.
func TestUser(t *testing.T) { runAsUser(t, "") }

// TestUserProcess is run by TestProcessIsolation as another user.
func TestUserProcess(t *testing.T) { runAsUser(t, sandbox.IsolationProcess) }

// TestUserFaults is run in a container job (e2e), where it shows that
// TestUserProcess can fail.
func TestUserFaults(t *testing.T) {
	if os.Getenv(jobHelper) == "" {
		return // nothing to do on its own
	}
	sandboxtest.RunFaults(t, userTarget(t, GVisor, sandbox.IsolationProcess), "commands have no privilege", "an exec gains nothing",
		"no host file outside the mounts", "no network", "forbidden system calls fail", "commands make no set-user-ID files", "tar extracts")
}

func runAsUser(t *testing.T, isolation sandbox.Isolation) {
	if os.Getenv(userHelper) == "" {
		return // nothing to do on its own
	}
	both(t, func(t *testing.T, k Kind) { sandboxtest.Run(t, userTarget(t, k, isolation)) })
}

func userTarget(t *testing.T, k Kind, isolation sandbox.Isolation) sandboxtest.Target {
	t.Helper()
	b := newBed(t, k, os.Geteuid())
	b.backend.options.Isolation = isolation
	addUserImages(t, b)
	target := conformanceTarget(b)
	addWritableImage(t, &target)
	target.FloodBytes, target.Probe, target.Brief = 16<<20, filepath.Join(os.Getenv(userHelper), "probe"), true
	target.Contained = os.Getenv(jobHelper) != ""
	target.SameInside = !target.Contained
	return target
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return sandboxtest.WriteProgram(to, data)
}
