package harden

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// engineCapabilities are a container's default capabilities, for which the
// engine's profile allows more calls (moby, daemon/pkg/oci/caps).
var engineCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP",
	"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// allowances maps each allowed call to its conditions; "" means no conditions.
func allowances(rules []specs.LinuxSyscall) map[string]string {
	list := map[string][]string{}
	for _, r := range rules {
		if r.Action != specs.ActAllow {
			continue
		}
		for _, name := range r.Names {
			text := ""
			for _, a := range r.Args {
				text += fmt.Sprintf(" arg%d %s %#x %#x", a.Index, a.Op, a.Value, a.ValueTwo)
			}
			list[name] = append(list[name], text)
		}
	}
	out := map[string]string{}
	for name, rules := range list {
		slices.Sort(rules)
		if rules[0] != "" {
			out[name] = strings.Join(rules, " or")
		} else {
			out[name] = ""
		}
	}
	return out
}

// engineRules returns the rules that a current engine loads for a container
// with its default capabilities.
func engineRules(arch string) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, call := range seccomp.DefaultProfile().Syscalls {
		if appliesTo(call, arch, engineCapabilities) {
			rules = append(rules, call.LinuxSyscall)
		}
	}
	return rules
}

// TestSeccompAgainstTheEngine compares our profile with the engine's default,
// call by call, and the difference with a reviewed list: "-" is refused by
// ours, "+" is allowed by ours alone, "~" has other conditions.
func TestSeccompAgainstTheEngine(t *testing.T) {
	var text strings.Builder
	for _, arch := range []string{"amd64", "arm64"} {
		ours, err := SeccompFor(arch)
		must(t, err)
		here, there := allowances(ours.OCI.Syscalls), allowances(engineRules(arch))
		fmt.Fprintf(&text, "%s\n", arch)
		var lines []string
		for name, rule := range there {
			if own, ok := here[name]; !ok {
				lines = append(lines, name+" -")
			} else if own != rule {
				lines = append(lines, name+" ~")
			}
		}
		for name := range here {
			if _, ok := there[name]; !ok {
				lines = append(lines, name+" +")
			}
		}
		slices.Sort(lines)
		for _, l := range lines {
			name, mark, _ := strings.Cut(l, " ")
			fmt.Fprintf(&text, "%s %s\n", mark, name)
		}
		// Our restrictions make more differences than that.
		if len(lines) < 10 {
			t.Errorf("%s: only %d differences", arch, len(lines))
		}
	}
	file := filepath.Join("testdata", "engine-difference.txt")
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, []byte(text.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("the difference from the engine's profile has changed (-want +got); review it and run with -update:\n%s", diff)
	}
}
