package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// idleSandboxes is how many are started for the measure of memory.
const idleSandboxes = 20

// BenchmarkIdle is the memory of an idle session, without a workload: the
// proportional set size of every process that belongs to its container.
func BenchmarkIdle(b *testing.B) {
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			bench := benchSandbox(b, name)
			var ids []string
			for range idleSandboxes {
				box := bench.start(b)
				if err := runIn(b.Context(), box, nil, "true"); err != nil {
					b.Fatal(err)
				}
				ids = append(ids, box.ID(), box.Attestation().Container)
			}
			time.Sleep(4 * time.Second) // an idle guest gives memory back after two
			total, processes := 0, 0
			for b.Loop() {
				total, processes = memoryOf(b, ids)
			}
			if processes < idleSandboxes {
				b.Fatalf("only %d processes are found", processes)
			}
			b.ReportMetric(float64(total)/idleSandboxes/1024, "KiB-a-session")
			b.ReportMetric(float64(processes)/idleSandboxes, "processes-a-session")
		})
	}
}

// memoryOf sums the proportional set sizes, in bytes, of the processes whose
// cgroup or command line names one of ids. Processes that share one address
// space, as some of gVisor's do, count once.
func memoryOf(b *testing.B, ids []string) (total, processes int) {
	b.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.Fatal(err)
	}
	counted := map[int][]int{} // processes by size
	for _, dir := range dirs {
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if !containsAny(append(group, line...), ids) {
			continue
		}
		rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(rollup), "\nPss:")
		n, err := strconv.Atoi(strings.Fields(rest + " 0")[0])
		if err != nil {
			b.Fatal(err)
		}
		processes++
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			b.Fatal(err)
		}
		if slices.ContainsFunc(counted[n], func(other int) bool { return sameMemory(pid, other) }) {
			continue
		}
		counted[n] = append(counted[n], pid)
		total += n << 10
		if testing.Verbose() {
			b.Logf("%s %d KiB %.60q", dir, n, line)
		}
	}
	return total, processes
}

// sameMemory says whether two processes have one address space (kcmp(2)).
func sameMemory(a, b int) bool {
	const addressSpace = 1 // KCMP_VM
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), addressSpace, 0, 0, 0)
	return errno == 0 && order == 0
}
