package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// An ordinary user gets cgroups only where all controllers are delegated.
func TestPlanDelegated(t *testing.T) {
	root := makeTree(t, map[string]string{
		"memory/user/memory.memsw.limit_in_bytes": "1", "pids/user/x": "", "cpu/user/x": "", "freezer/user/x": "", "unified/x": "",
		"v2/cgroup.controllers": "cpu memory pids\n", "v2/app.slice/cgroup.controllers": "cpu memory pids\n",
		"v2/app.slice/run.scope/x": "", "v2/few.slice/cgroup.controllers": "memory pids\n", "v2/few.slice/run.scope/x": "",
		"container/cgroup.controllers": "cpu memory pids\n", "container/cgroup.type": "domain\n", "container/cgroup.procs": "1\n",
	})
	at := func(p string) string { return filepath.Join(root, p) }
	v1 := func(names ...string) (trees []tree) {
		for _, n := range names {
			trees = append(trees, tree{at(n), "/", []string{n}})
		}
		return trees
	}
	hybrid := append(v1("memory", "freezer", "pids", "cpu"), tree{at("unified"), "/", nil})
	dirs := func(names ...string) (plan cgroupPlan) {
		plan.made, plan.swap = true, true
		for _, n := range names {
			plan.dirs = append(plan.dirs, at(n+"/caisson-ses_1"))
		}
		return plan
	}
	for name, tt := range map[string]struct {
		trees []tree
		own   string
		want  cgroupPlan
		have  string
	}{
		"hybrid": {
			trees: hybrid, own: "1:memory:/user\n2:freezer:/user\n3:pids:/user\n4:cpu:/user\n0::/\n",
			want: dirs("memory/user", "pids/user", "cpu/user"), have: "memory pids cpu",
		},
		"a controller is missing": {
			trees: v1("memory", "pids"), own: "1:memory:/user\n3:pids:/user\n",
			want: dirs("memory/user", "pids/user"), have: "memory pids",
		},
		"v2": {
			trees: []tree{{at("v2"), "/", nil}}, own: "0::/app.slice/run.scope\n", want: dirs("v2/app.slice"), have: "cpu memory pids",
		},
		"v2, without CPU time": {
			trees: []tree{{at("v2"), "/", nil}}, own: "0::/few.slice/run.scope\n", want: dirs("v2/few.slice"), have: "memory pids",
		},
		"v2, crowded": {trees: []tree{{at("container"), "/", nil}}, own: "0::/\n", want: cgroupPlan{crowded: at("container")}},
	} {
		got, have := planDelegated(tt.trees, parseCgroups(tt.own), "caisson-ses_1")
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(cgroupPlan{})); diff != "" || strings.Join(have, " ") != tt.have {
			t.Errorf("%s: controllers %q, plan (-want +got):\n%s", name, have, diff)
		}
	}
}

// Root delegates a cgroup v1 to an ordinary user, who then runs sandboxes.
func TestDelegatedCgroups(t *testing.T) {
	trees, err := cgroupTrees()
	must(t, err)
	own, err := processCgroups("self")
	must(t, err)
	if plan, have := layOut(trees, own, "x"); os.Geteuid() != 0 || len(subtractAll(needed, have)) > 0 || plan.crowded != "" || len(trees) == 1 {
		t.Skip("needs root and the controllers of cgroup v1, to delegate them")
	}
	var delegated []string
	for _, c := range needed {
		for _, tr := range trees {
			if !slices.Contains(tr.controllers, c) {
				continue
			}
			at, ok := tr.dirOf(own)
			if !ok {
				t.Fatalf("no cgroup of %s", c)
			}
			dir := filepath.Join(at, fmt.Sprintf("delegated-%d", os.Getpid()))
			must(t, os.Mkdir(dir, 0o755))
			t.Cleanup(func() {
				for range 100 { // the last process may be counted a moment longer
					if err = os.Remove(dir); err == nil {
						return
					}
					pauseBriefly()
				}
				t.Errorf("the delegated cgroup can't be removed: %v", err)
			})
			for _, name := range []string{"", "tasks", "cgroup.procs"} {
				must(t, os.Chown(filepath.Join(dir, name), userID, userID))
			}
			delegated = append(delegated, dir)
		}
	}
	startUser = func(cmd *exec.Cmd) error { return startInCgroups(delegated, cmd) }
	t.Cleanup(func() { startUser = (*exec.Cmd).Start })
	asUser(t, "TestUserDelegated", func(string) {})
}

func subtractAll(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// TestUserDelegated is run by TestDelegatedCgroups as another user.
func TestUserDelegated(t *testing.T) {
	if os.Getenv(userHelper) == "" {
		return // nothing to do on its own
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		spec := b.spec(t, "ses_delegated")
		spec.Resources.MemoryBytes, spec.Resources.PIDs, spec.Resources.MilliCPUs = 256<<20, 64, 900
		sb := b.start(t, spec)
		a := sb.Attestation()
		if a.Limits.MemoryBytes != 256<<20 || a.Limits.PIDs != 64 || a.Limits.MilliCPUs != 900 ||
			slices.ContainsFunc(a.Lost, func(l string) bool { return strings.Contains(l, "Limits of") }) {
			t.Errorf("attested %+v, lost %q", a.Limits, a.Lost)
		}
		for _, dir := range containerOf(sb).plan.cgroup.dirs {
			if procs := strings.Fields(readText(dir, "cgroup.procs")); len(procs) == 0 || slices.Contains(procs, fmt.Sprint(os.Getpid())) {
				t.Errorf("%s has the processes %q", dir, procs)
			}
		}
		var errs bytes.Buffer
		exit, err := sandbox.Run(t.Context(), sb, sandbox.Command{
			Argv: []string{"sh", "-c", "i=0; while [ $i -lt 70 ]; do sleep 100 & i=$((i+1)); done"}, Stderr: &errs, Timeout: 20 * time.Second,
		})
		if err != nil || exit.Status.Success() || !strings.Contains(errs.String(), "fork") {
			t.Errorf("70 processes: %v, %v, %.200s", exit.Status, err, errs.String())
		}
		exit, err = sandbox.Run(t.Context(), sb, sandbox.Command{Argv: []string{"sh", "-c", "head -c 400m /dev/zero | tail -c 399m | wc -c"}, Timeout: 5 * time.Minute})
		if exit.Status.TimedOut {
			t.Fatal("400 MiB took five minutes")
		}
		if k == GVisor { // where it ends the sandbox
			<-sb.Done()
		}
		reached, ok := errors.AsType[*limits.ExceededError](sb.Err())
		if k == GVisor && (!ok || reached.Kind != limits.KindMemory) || k == Runc && (err != nil || !exit.Status.OOMKilled) {
			t.Errorf("400 MiB: %+v, %v; the sandbox: %v", exit, err, sb.Err())
		}
		// The next Caisson removes what a killed one left.
		must(t, sb.Destroy(context.Background()))
		plan, _ := planCgroup("ses_left", true, b.backend.traits)
		must(t, plan.makeCgroups(spec.Resources, 64))
		cmd := exec.Command("sleep", "1000")
		must(t, plan.startInside(cmd))
		for _, dir := range plan.dirs {
			if removed, err := removeCgroup(dir, "ses_left"); err != nil || !removed {
				t.Errorf("%s: removed %t, %v", dir, removed, err)
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Error("a process in a removed cgroup lived on")
		}
	})
}
