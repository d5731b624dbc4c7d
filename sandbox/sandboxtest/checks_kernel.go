package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

func kernelChecks() []check {
	return []check{
		{name: "forbidden system calls fail", run: checkSyscalls},
		{name: "files of the kernel are closed", run: checkKernelFiles},
		{name: "the mounts are those that were planned", run: checkMounts},
		{name: "every writable place is bounded", fresh: true, resources: smallPlaces, run: checkPlaces},
		{name: "the kernel is the one that was asked for", run: checkKernel},
		{name: "there is no terminal", run: checkTerminal},
		{name: "namespaces are not the host's", run: checkNamespaces},
		{name: "the kernel kills a sandbox before Caisson", run: checkOOMScore},
		{name: "process limits are those that were planned", run: checkRlimits},
	}
}

// absent are the errors of a kernel without such a thing.
var absent = []string{"ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENOENT", "EOPNOTSUPP", "ENOTSUP"}

// parseOutput decodes a verb's JSON output, unless err says that it failed.
func parseOutput[T any](out string, err error) (v T, _ error) {
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	return v, err
}

// checkSyscalls makes every attempt in the probe's table inside and, as the
// control, on the host: one that is refused there too proves nothing.
func checkSyscalls(ctx context.Context, e *env) error {
	inside, err := parseOutput[map[string]string](e.expectOutput(ctx, "syscalls"))
	if err != nil {
		return err
	}
	host, err := parseOutput[map[string]string](e.runNaive(ctx, "syscalls"))
	if err != nil {
		return err
	}
	if len(inside) < 100 || !slices.Equal(slices.Sorted(maps.Keys(inside)), slices.Sorted(maps.Keys(host))) {
		return fmt.Errorf("%d attempts inside, %d on the host", len(inside), len(host))
	}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(inside)) {
		got := inside[name]
		switch {
		case strings.HasPrefix(name, "control:"):
			if got != "allowed" {
				wrong = append(wrong, fmt.Errorf("%s: %s, which must work", name, got))
			}
		case got == "allowed":
			if !isNoted(e, name) {
				wrong = append(wrong, fmt.Errorf("%s is allowed", name))
			}
		case got != "EPERM" && got != "EACCES" && got != "EROFS" && !slices.Contains(absent, got):
			wrong = append(wrong, fmt.Errorf("%s: %s", name, got))
		}
	}
	if err := errors.Join(append(wrong, checkNoted(ctx, e, inside))...); err != nil {
		return err
	}
	return e.control(controlAttempts(host))
}

// isNoted reports whether a sandbox's own kernel accepts a value and ignores
// it: gVisor has no scheduler and kills no process when memory runs out
// (sys_thread.go: "niceness has no effect"). checkNoted checks the effect on
// the host.
func isNoted(e *env, name string) bool {
	return e.target.OwnKernel && (name == "oom_score_adj" || name == "priority")
}

// checkNoted asserts that what the inner kernel noted changed nothing on the
// host.
func checkNoted(ctx context.Context, e *env, inside map[string]string) error {
	if !e.target.OwnKernel || inside["priority"] != "allowed" && inside["oom_score_adj"] != "allowed" {
		return nil
	}
	pid, err := e.target.HostProcess(ctx, e.sb)
	if err != nil {
		return err
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	if err != nil {
		return err
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		return err
	}
	if nice > 20 || strings.HasPrefix(string(score), "-") {
		return fmt.Errorf("the sandbox's process on the host has nice value %d and oom_score_adj %s", 20-nice, strings.TrimSpace(string(score)))
	}
	return nil
}

// controlAttempts asserts that the attempts work on the host, where only the
// suite user's privileges limit them.
func controlAttempts(host map[string]string) error {
	var proved int
	var idle []string
	for name, got := range host {
		switch {
		case got == "allowed":
			proved++
		case slices.Contains(absent, got), needsResource[name] && !hasCapability(unix.CAP_SYS_RESOURCE), os.Geteuid() != 0:
		case name == realTime && got == "EPERM" && onlyV2():
		default:
			idle = append(idle, name+": "+got)
		}
	}
	if len(idle) > 0 || proved < 40 {
		slices.Sort(idle)
		return fmt.Errorf("positive control: %d attempts work on the host; without a reason refused there too: %q", proved, idle)
	}
	return nil
}

// needsResource are attempts that need CAP_SYS_RESOURCE, which root of a
// virtual machine or container may lack.
var needsResource = map[string]bool{"oom_score_adj": true, "more open files": true}

// realTime is refused even to root if the kernel has CONFIG_RT_GROUP_SCHED and
// only version 2 cgroups, which can't get real-time time
// (Documentation/admin-guide/cgroup-v2.rst, "CPU").
const realTime = "real-time schedule"

// onlyV2 reports whether cgroup version 2 has all controllers.
func onlyV2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

func hasCapability(capability int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

func checkKernelFiles(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "kernel-files")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if lines[0] != "control" {
		return fmt.Errorf("positive control inside: %q", lines[0])
	}
	wrong := slices.DeleteFunc(lines[1:], func(line string) bool {
		// Devices of gVisor's own kernel: nothing can be mounted, and the
		// tunnel ends in the sandbox's own network.
		own := e.target.OwnKernel && (line == "device fuse" || line == "device net" || line == "device char")
		// Root may change its own kernel, which is not the host's.
		own = own || e.target.OwnKernel && e.user == sandbox.UserRoot && strings.HasPrefix(line, "write /proc/sys")
		// The guest is a process like the command's if commands are root, or if
		// there is only one ID, which is attested as lost.
		guest := (e.target.SingleUID || e.user == sandbox.UserRoot) && strings.HasPrefix(line, "write /proc/1/oom_")
		return own || guest
	})
	if len(wrong) > 0 {
		return fmt.Errorf("open inside: %q", wrong)
	}
	host, err := e.runPlain(ctx, "kernel-files")
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 && (!strings.Contains(host, "write /proc/sys/kernel/core_pattern\n") || strings.Count(host, "\n") < 50) {
		return fmt.Errorf("positive control: root on the host can write and read only %q", host)
	}
	return nil
}

func checkKernel(ctx context.Context, e *env) error {
	inside, err := e.expectOutput(ctx, "read", "/proc/version")
	if err != nil {
		return err
	}
	host, err := os.ReadFile("/proc/version")
	if err != nil {
		return err
	}
	if same := inside == string(host); same == e.target.OwnKernel {
		return fmt.Errorf("kernel inside %q, of the host %q", inside, host)
	}
	if e.target.OwnKernel && !strings.Contains(strings.ToLower(inside), "gvisor") {
		return fmt.Errorf("kernel inside is %q", inside)
	}
	if at := e.sb.Attestation().Kernel; strings.TrimSpace(at) != strings.TrimSpace(inside) {
		return fmt.Errorf("attested kernel %q, inside %q", at, inside)
	}
	return nil
}

// checkTerminal: a command leads its own session without a terminal. The
// control runs the same verb on a terminal.
func checkTerminal(ctx context.Context, e *env) error {
	if err := e.expectAnswer(ctx, "leads its session\n", "terminal"); err != nil {
		return err
	}
	control, err := onTerminal(ctx, e, "terminal")
	if err != nil {
		return err
	}
	if !strings.Contains(control, "controlling terminal") || !strings.Contains(control, "terminal at 0") {
		return fmt.Errorf("positive control: on a terminal the probe says %q", control)
	}
	return nil
}

func checkNamespaces(ctx context.Context, e *env) error {
	inside, err := e.expectOutput(ctx, "namespaces")
	if err != nil {
		return err
	}
	host, err := e.runPlain(ctx, "namespaces")
	if err != nil {
		return err
	}
	seen := splitLines(inside)
	if both := slices.DeleteFunc(seen, func(l string) bool {
		return !slices.Contains(splitLines(host), l) || strings.HasPrefix(l, "user:") || strings.HasPrefix(l, "time:")
	}); len(both) > 0 && !e.target.OwnKernel {
		return fmt.Errorf("shared with the host: %q", both)
	}
	if len(splitLines(host)) < 6 {
		return fmt.Errorf("positive control: the host has only %q", splitLines(host))
	}
	return nil
}

func checkOOMScore(ctx context.Context, e *env) error {
	inside, err := e.expectNumber(ctx, "read", "/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	host, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		return err
	}
	if inside <= host && !e.target.OwnKernel {
		return fmt.Errorf("oom_score_adj of a command is %d, of this process %d", inside, host)
	}
	return nil
}

// checkRlimits compares a command's limits with the plan. The suite user's own
// hard limit may be lower.
func checkRlimits(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "rlimits")
	if err != nil {
		return err
	}
	got := map[string]int64{}
	for _, l := range splitLines(out) {
		name, value, _ := strings.Cut(l, " ")
		if got[name], err = strconv.ParseInt(value, 10, 64); err != nil {
			return err
		}
	}
	var errs []error
	for _, l := range harden.Rlimits(limits.DefaultResources(), false) {
		if n, ok := got[l.Name]; !ok || n < 0 || n > l.Hard {
			errs = append(errs, fmt.Errorf("limit %s is %d, want %d", l.Name, n, l.Hard))
		}
	}
	return errors.Join(errs...)
}
