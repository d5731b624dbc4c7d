//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// checkPlantedHere asserts the bit itself; that it holds is a check of the
// suite, with a workspace of its own.
func checkPlantedHere(ctx context.Context, e *env) error {
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	return compareSetting("NoNewPrivs", f.NoNewPrivs, "1")
}

// checkNamespaces compares the namespaces inside with the host's.
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

// checkOOMScore: if the kernel must choose, it kills the sandbox before
// Caisson.
func checkOOMScore(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "read", "/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	inside, err := strconv.Atoi(strings.TrimSpace(out))
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

// checkRlimits compares what a command is bounded by with the plan. A hard
// limit of the suite's user may be lower.
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
