package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"caisson": fakeMain})
}

// fakeMain is the program with backends that start no container. FAKE_DOCKER and
// FAKE_GVISOR are the errors of backends. FAKE_NETWORK, FAKE_LOST and FAKE_RUNTIME say
// what a command reaches, what is not protected and the runtime. FAKE_REFUSES is why no
// sandbox starts, FAKE_CONFINED why none has namespaces. FAKE_LEFT names a remain of a dead owner, FAKE_SWEEPS lets a sweep
// remove everything noted, FAKE_UNMOUNTS lets it unmount workspaces. FAKE_LISTED names
// a running session, listed with a dead one and another user's.
func fakeMain() {
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	d := newApp(signals, os.Exit)
	d.requirements = os.Getenv("FAKE_REQUIREMENTS")
	d.requirementsUID = os.Getuid()
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	if os.Getenv("FAKE_NO_PROGRAMS") != "" {
		self = "/nowhere/caisson"
	} else {
		self = filepath.Join(os.Getenv("FAKE_BIN"), "caisson")
	}
	d.executable = func() (string, error) { return self, nil }
	d.backend = fakeBackends
	d.resources = func() limits.Resources { return limits.ResourcesAlone(10<<30, 4) }
	env := os.Environ()
	for i, v := range env {
		if strings.HasPrefix(v, "PATH=") {
			env[i] = "PATH=" + os.Getenv("FAKE_PATH") // the machine's own must not matter
		}
	}
	if to := os.Getenv("FAKE_MEMORY"); to != "" {
		every, err := strconv.Atoi(os.Getenv("FAKE_MEMORY_EVERY"))
		if err != nil {
			panic(err)
		}
		go sampleMemory(os.Getenv("FAKE_MEMORY_OF"), to, every)
	}
	os.Exit(run(context.Background(), os.Args[1:], env, d))
}

func fakeBackends(s caisson.BackendSettings) (sandbox.Backend, error) {
	b := &fakeBackend{name: s.Name, env: "FAKE_" + strings.ToUpper(s.Name), waiting: os.Getenv("FAKE_WAITING"), isolation: s.Isolation, confined: os.Getenv("FAKE_CONFINED")}
	b.network, b.lost, b.runtime = os.Getenv("FAKE_NETWORK"), os.Getenv("FAKE_LOST"), os.Getenv("FAKE_RUNTIME")
	b.refuses = os.Getenv("FAKE_REFUSES")
	if os.Getenv("FAKE_SWEEPS") != "" {
		b.journal = filepath.Join(s.StateDir, "cleanup")
	}
	if os.Getenv("FAKE_UNMOUNTS") != "" {
		b.mounts = filepath.Join(s.StateDir, "sessions", "*", "sandbox", "merged")
	}
	if left := os.Getenv("FAKE_LEFT"); left != "" && s.Name == "gvisor" {
		b.leftovers = []sandbox.Orphan{{Kind: "container", Name: left, Owner: "pid 7"}}
	}
	if session := os.Getenv("FAKE_LISTED"); session != "" && s.Name == "gvisor" {
		b.listed = []sandbox.Listing{
			{Session: session, Backend: s.Name, Container: "caisson-" + session, Image: "host", Workspace: "/home/me/p\x1b[2J", State: sandbox.ListedRunning, Owner: sandbox.ListedOwner{PID: 7, State: "alive"}, MemoryBytes: 3 << 20},
			{Session: session + "2", Backend: s.Name, State: sandbox.ListedGone, Owner: sandbox.ListedOwner{PID: 8, State: "dead"}},
			{Session: "ses_other", Backend: s.Name, State: sandbox.ListedRunning, Owner: sandbox.ListedOwner{PID: 9, State: "unknown"}, Foreign: true},
		}
	}
	return b, nil
}

func TestScripts(t *testing.T) {
	host := newRegistry(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Condition: func(cond string) (bool, error) {
			if cond != "root" {
				return false, fmt.Errorf("there is no condition %s", cond)
			}
			return os.Getuid() == 0, nil
		},
		Setup: func(e *testscript.Env) error {
			if err := setUpScript(e); err != nil {
				return err
			}
			e.Setenv("REGISTRY", host)
			return writeImages(e.WorkDir)
		},
	})
}

// setUpScript gives a script a home, a workspace and programs.
func setUpScript(e *testscript.Env) error {
	home, bin := filepath.Join(e.WorkDir, "home"), filepath.Join(e.WorkDir, "bin")
	e.Setenv("HOME", home)
	e.Setenv("FAKE_BIN", bin)
	e.Setenv("FAKE_DOCKER", "no engine answers")
	e.Setenv("DOCKER_HOST", "unix:///no/such.sock")
	return errors.Join(os.MkdirAll(home, 0o755), os.MkdirAll(filepath.Join(e.WorkDir, "ws"), 0o755), writePrograms(bin))
}

// writePrograms writes the programs that Caisson looks for into a directory.
func writePrograms(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	for _, name := range []string{"caisson", "caisson-guest", "runsc", "runc"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755))
	}
	return err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeFile writes a file, and makes its directory.
func writeFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)))
}

// exits is exec for a program that must end with a given status:
//
//	exits 52 caisson run task
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS program [argument...]")
	}
	status := 0
	err := ts.Exec(args[1], args[2:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if args[0] != strconv.Itoa(status) {
		ts.Fatalf("status %d, want %s\n%s", status, args[0], ts.ReadFile("stderr"))
	}
}
