package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
	"github.com/caisson-run/caisson/sandbox/oci"
)

func newSandboxCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "sandbox", Short: "Create sandboxes, run commands and copy files in live ones, list and remove them",
	}, newSandboxCreateCommand(a), newSandboxExecCommand(a), newSandboxAttachCommand(a), newSandboxCopyCommand(a), newSandboxListCommand(a), newSandboxRemoveCommand(a), newSandboxCollectCommand(a),
		newSandboxHoldCommand(a))
}

func newSandboxListCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write a JSON array"`
		All  bool `flag:"all" doc:"also sandboxes of other users and machines that share the engine"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Short: "List sandboxes, live and dead", Args: noArgs,
		Long: `List this user's sandboxes on all backends: running ones, and the remains of those whose Caisson process
is dead, which caisson sandbox gc removes.

OWNER is the pid of the Caisson process that made it, "dead" if that process is gone, or "elsewhere"
if it runs on another machine or in another PID namespace. STATE is the state that the engine or
runtime reports; "gone" means that the container is gone and other parts of the sandbox are left.
The container of a session is called caisson-SESSION.
`,
		Example: "  caisson sandbox ls\n  caisson sandbox ls --json | jq -r '.[].session'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			bs, err := openDefaultBackends(a)
			if err != nil {
				return err
			}
			defer bs.close()
			found, failures := bs.listSandboxes(cmd.Context())
			if !f.All {
				found = slices.DeleteFunc(found, isForeign)
			}
			return a.endWithFailures(showTable(a, f.JSON, found, table[sandbox.Listing]{
				titles: []string{"SESSION", "BACKEND", "STATE", "OWNER", "SINCE", "MEMORY", "IMAGE", "WORKSPACE"},
				cells: func(l sandbox.Listing) []string {
					return []string{l.Session, l.Backend, string(l.State), ownerText(l), usedText(l.Since, false), memoryText(l.MemoryBytes), l.Image, l.Workspace}
				},
			}), failures)
		},
	}, &f, usesConfig, statuses{exitFailed: "a backend could not be asked"})
}

// endWithFailures writes failures after which a command continued. It returns err, or
// else the status for failures.
func (a *app) endWithFailures(err error, failures []string) error {
	var p page
	for _, text := range failures {
		p.line("caisson: %s", strings.TrimSpace(text))
	}
	_, told := io.WriteString(a.stderr, p.String())
	if err = errors.Join(err, told); err == nil && len(failures) > 0 {
		return exitWith(exitFailed)
	}
	return err
}

func newSandboxCollectCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write a JSON object: removed, left, failures"`
	}
	return newCommand(&cobra.Command{
		Use: "gc [flags]", Short: "Remove the remains of dead sandboxes", Args: noArgs,
		Long: `Remove the remains of sandboxes of dead Caisson processes, on all backends: containers, bundles,
cgroups, mounts, directories, placeholders in workspaces. Sessions that may need a sandbox do the same
when they start, within a time limit. Nothing of a live Caisson process is touched.

The output lists everything that was removed, and everything that was left with the reason.
`,
		Example: "  caisson sandbox gc\n  caisson sandbox gc --json | jq '.left'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			bs, err := openDefaultBackends(a)
			if err != nil {
				return err
			}
			defer bs.close()
			c := bs.collectOrphans(cmd.Context())
			err = a.show(f.JSON, c, c.describe)
			if f.JSON && len(c.Failures) > 0 {
				return cmp.Or(err, exitWith(exitFailed))
			}
			return a.endWithFailures(err, c.Failures)
		},
	}, &f, usesConfig, statuses{exitFailed: "something could not be removed"})
}

// backendNames are all backends, in the order in which they are asked.
var backendNames = []string{"docker", "gvisor", "runc"}

func hasNotes(stateDir, name string) bool {
	if name == docker.Name {
		return docker.Pending(stateDir)
	}
	return oci.Pending(stateDir, oci.Kind(name))
}

// eachBackend calls f with every backend that this machine has. A missing backend is a
// failure only if its sessions left notes.
func (bs *backends) eachBackend(ctx context.Context, f func(ctx context.Context, b sandbox.Backend) error) []string {
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTime, errors.New("no answer in time"))
	defer cancel()
	var failures []string
	for _, name := range backendNames {
		noted := hasNotes(bs.environ.stateDir(), name)
		b, err := bs.host.Backend(name)
		if err == nil {
			err = f(ctx, b)
			noted = noted || !errors.Is(err, sandbox.ErrUnavailable) && !errors.Is(err, sandbox.ErrUnsupported)
		}
		if err != nil && noted {
			for _, text := range whyFilesStay(err) {
				if !slices.Contains(failures, text) {
					failures = append(failures, text)
				}
			}
		}
	}
	return failures
}

// whyFilesStay splits a joined error so that a fault of a file is reported once, not by
// each backend.
func whyFilesStay(err error) []string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok && strings.Contains(e.Error(), "\n") {
			var all []string
			for _, part := range joined.Unwrap() {
				all = append(all, whyFilesStay(part)...)
			}
			return all
		}
		// The outermost text names the backend, not the file.
		if inner := errors.Unwrap(e); inner != nil && strings.Contains(inner.Error(), "cleanup") {
			continue
		}
		return []string{e.Error()}
	}
	return nil
}

// isForeign reports whether a sandbox belongs to another user or machine and is not
// dead.
func isForeign(l sandbox.Listing) bool { return l.Foreign && l.Owner.State != "dead" }

// listSandboxes asks every backend for its sandboxes, oldest first.
func (bs *backends) listSandboxes(ctx context.Context) ([]sandbox.Listing, []string) {
	found := []sandbox.Listing{}
	failures := bs.eachBackend(ctx, func(ctx context.Context, b sandbox.Backend) error {
		list, err := b.List(ctx)
		found = append(found, list...)
		return err
	})
	slices.SortStableFunc(found, func(a, b sandbox.Listing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Session, b.Session))
	})
	return found, failures
}

type collection struct {
	Removed  []sandbox.Orphan `json:"removed"`
	Left     []leftAlone      `json:"left"`
	Failures []string         `json:"failures"`
}

type leftAlone struct {
	Session string `json:"session,omitempty"`
	Backend string `json:"backend,omitempty"`
	File    string `json:"file,omitempty"`
	Why     string `json:"why"`
}

// collectOrphans sweeps with every backend and lists the remains.
func (bs *backends) collectOrphans(ctx context.Context) collection {
	out := collection{Removed: []sandbox.Orphan{}, Left: []leftAlone{}, Failures: []string{}}
	failures := bs.eachBackend(ctx, func(ctx context.Context, b sandbox.Backend) error {
		removed, err := b.Sweep(ctx)
		out.Removed = append(out.Removed, removed...)
		return err
	})
	out.Failures = append(out.Failures, failures...)
	if _, err := sessiondir.Sweep(bs.environ.stateDir()); err != nil {
		out.Failures = append(out.Failures, err.Error())
	}
	found, unlisted := bs.listSandboxes(ctx)
	for _, text := range unlisted {
		if !slices.Contains(out.Failures, text) {
			out.Failures = append(out.Failures, text)
		}
	}
	for _, l := range slices.DeleteFunc(found, isForeign) {
		out.Left = append(out.Left, leftAlone{Session: l.Session, Backend: l.Backend, Why: whyLeft(l)})
	}
	damaged, err := filepath.Glob(filepath.Join(bs.environ.stateDir(), "cleanup", "*.damaged"))
	if err == nil {
		for _, file := range damaged {
			out.Left = append(out.Left, leftAlone{File: file, Why: "a damaged note of what a session made: nothing was removed by it; look for what it names, then remove the file"})
		}
	}
	return out
}

// whyLeft returns why a sandbox remains after a sweep.
func whyLeft(l sandbox.Listing) string {
	switch {
	case l.GivenUp:
		return fmt.Sprintf("its owner, pid %d, could not remove it, and neither could this", l.Owner.PID)
	case l.Owner.State == "alive":
		return fmt.Sprintf("its owner lives: pid %d", l.Owner.PID)
	case l.Owner.State == "dead":
		return fmt.Sprintf("its owner, pid %d, died meanwhile, or it could not be removed: run this again", l.Owner.PID)
	}
	return "its owner can't be seen from here: it is on another machine, or in another PID namespace"
}

// checkRemains refuses to resume a session if its dead process's sandbox remains after
// a sweep with the error swept.
func (bs *backends) checkRemains(ctx context.Context, session string, swept error) error {
	left := sessiondir.Remains(bs.environ.stateDir(), session)
	if len(left) == 0 {
		return nil
	}
	cause := fmt.Sprintf("the sandbox of the session's dead process can't be removed: %s has %s", bs.environ.stateDir(), strings.Join(left, ", "))
	found, _ := bs.listSandboxes(ctx) // the sweep has reported its errors
	if i := slices.IndexFunc(found, func(l sandbox.Listing) bool { return l.Session == session }); i >= 0 {
		cause += "; " + whyLeft(found[i])
	}
	if swept != nil {
		cause += "; " + swept.Error()
	}
	return newFailure(exitSandboxStart, swept, cause, "caisson sandbox gc tries again, and lists what is left.")
}

// describe adds the result to a page, except the failures.
func (c collection) describe(p *page) {
	for _, r := range c.Removed {
		p.line("removed  %-12s %s  (session %s, owner %s)", r.Kind, r.Name, r.Session, r.Owner)
	}
	for _, l := range c.Left {
		p.line("left     %s: %s", cmp.Or(l.File, l.Session+" on "+l.Backend), l.Why)
	}
	if len(c.Removed)+len(c.Left)+len(c.Failures) == 0 {
		p.line("nothing is left of dead sandboxes")
	}
}

func ownerText(l sandbox.Listing) string {
	text := fmt.Sprint(l.Owner.PID)
	switch {
	case l.Owner.State == "dead":
		text += " dead"
	case l.Owner.State != "alive":
		text += " elsewhere"
	case l.GivenUp:
		text += " gave up"
	}
	return text
}

func memoryText(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
