package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// manySessions is how many sessions TestManyAtOnce runs at once; MANY_SESSIONS
// overrides it. gVisor's starts and commands cost more than those of the others.
var manySessions = map[string]int{"docker": 24, "gvisor": 8, "runc": 24}

// manyTime bounds the start of all of them: the engine starts them one by one, in
// half a second each on a calm machine.
const manyTime = 8 * time.Minute

// TestManyAtOnce has many sessions live at the same time: all start, each in
// its own container, all answer a user, and all end in order. Nothing runs out
// of names, networks, descriptors or memory, and nothing is left.
func TestManyAtOnce(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		sessions := fromEnv(t, "MANY_SESSIONS", manySessions[backend])
		m := newMachine(t)
		// The defaults of caisson serve: a session that is alone in its process may use
		// more, and fewer of those start at once.
		args := []string{"--memory", "2GiB", "--cpus", "2"}
		args = append(args, m.playing(t, []scriptCall{shell(strings.Replace(untilStopped, "0.1", "5", 1))})...) // a gVisor exec costs 8 ms
		var runs []*running
		var machines []*machine
		begun := time.Now()
		for n := range sessions {
			own := *m
			own.workspace = filepath.Join(filepath.Dir(m.home), fmt.Sprintf("ws%d", n))
			if err := os.Mkdir(own.workspace, 0o755); err != nil {
				t.Fatal(err)
			}
			runs = append(runs, own.start(t, taskArgs(&own, append([]string{"--backend", backend}, args...)...)...))
			machines = append(machines, &own)
		}
		for i, run := range runs {
			run.untilWithin(t, "the command runs", manyTime, func() bool {
				_, err := os.Stat(filepath.Join(machines[i].workspace, "started"))
				return err == nil
			})
		}
		all := time.Since(begun)
		least := availableMemory(t)

		live := slices.DeleteFunc(m.list(t), func(l listed) bool { return l.State != "running" || l.Owner.State != "alive" })
		containers := map[string]bool{}
		var memory int64
		for _, l := range live {
			containers[l.Container] = true
			memory += l.Memory
		}
		if len(live) != sessions || len(containers) != sessions {
			t.Errorf("%d sandboxes run in %d containers, want %d", len(live), len(containers), sessions)
		}
		for _, l := range []listed{live[0], live[len(live)/2], live[len(live)-1]} {
			if out, stderr, status := m.exec(t, nil, l.Session, "echo", "here"); status != 0 || string(out) != "here\n" {
				t.Errorf("exec in %s: %d %s", l.Session, status, stderr)
			}
		}
		for _, own := range machines {
			own.write(t, "stop", "") // all end at once, too
		}
		var ids []string
		var starts []int64
		for i, run := range runs {
			records := machines[i].release(t, run)
			ids = append(ids, records[0].Session)
			starts = append(starts, decode[struct {
				MS int64 `json:"start_ms"`
			}](t, *records.first(t, "sandbox.started")).MS)
		}
		slices.Sort(starts)
		t.Logf("%s: %d at once, all running after %.1f s; start p50 %d ms, p95 %d ms, most %d ms; charged %d MiB in all, %d MiB of the machine's memory left",
			backend, sessions, all.Seconds(), starts[len(starts)/2], starts[len(starts)*95/100], starts[len(starts)-1], memory>>20, least>>20)
		m.wantNothingLeft(t, ids...)
		if least < 256<<20 {
			t.Errorf("%d MiB of the machine's memory were left", least>>20)
		}
	})
}

// first gives the first record of a kind.
func (all records) first(t *testing.T, kind string) *traceRecord {
	t.Helper()
	for i := range all {
		if all[i].Kind == kind {
			return &all[i]
		}
	}
	t.Fatalf("no record of kind %s", kind)
	return nil
}

// availableMemory is MemAvailable of /proc/meminfo, in bytes.
func availableMemory(t *testing.T) int64 {
	t.Helper()
	data := readFile(t, "/proc/meminfo")
	for line := range strings.Lines(string(data)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no MemAvailable in /proc/meminfo")
	return 0
}
