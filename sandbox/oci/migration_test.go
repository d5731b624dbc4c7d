package oci

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// The migration ends with the cgroup's first process or the context, and leaves
// this process where it was.
func TestExpectMigration(t *testing.T) {
	plan, lost := planCgroup("ses_migration", os.Geteuid() != 0, traits{})
	if plan.own == "" {
		t.Skipf("needs root and cgroups: %q", lost)
	}
	before, err := processCgroups("self")
	must(t, err)
	must(t, os.Mkdir(plan.joined, 0o755))
	defer os.Remove(plan.joined)

	ctx, cancel := context.WithCancel(t.Context())
	ended := expectInBackground(ctx, plan)
	requireRunning(t, ended)
	cancel()
	requireEnd(t, ended)

	ended = expectInBackground(t.Context(), plan)
	requireRunning(t, ended)
	sleep := exec.Command("sleep", "60")
	must(t, sleep.Start())
	defer func() {
		_ = sleep.Process.Kill() // its end is waited for
		_ = sleep.Wait()         // killed
	}()
	must(t, os.WriteFile(filepath.Join(plan.joined, "cgroup.procs"), []byte(strconv.Itoa(sleep.Process.Pid)), 0))
	requireEnd(t, ended)

	after, err := processCgroups("self")
	must(t, err)
	if !maps.Equal(before, after) {
		t.Errorf("this process was moved from %v to %v", before, after)
	}
}

func expectInBackground(ctx context.Context, plan cgroupPlan) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		expectMigration(ctx, plan)
		close(ended)
	}()
	return ended
}

func requireRunning(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
		t.Fatal("it ended by itself")
	case <-time.After(50 * time.Millisecond):
	}
}

func requireEnd(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}
