package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/caches"
)

func newCachesCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "caches", Short: "List and remove the caches of workspaces",
	}, newCachesListCommand(a), newCachesRemoveCommand(a))
}

func newCachesListCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write a JSON array"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Short: "List the caches of workspaces", Args: noArgs,
		Long: `List the build tool caches that sessions keep, below $XDG_STATE_HOME/caisson/caches.

Each workspace has its own caches; the setting caches names them. USED is when the last session that
used them ended, or "now" while one runs.
`,
		Example: "  caisson caches ls\n  caisson caches ls --json | jq -r '.[].workspace'",
		RunE: func(*cobra.Command, []string) error {
			s, err := cacheStore(a)
			if err != nil {
				return err
			}
			list, err := s.List()
			if err != nil {
				return err
			}
			return showTable(a, f.JSON, list, table[caches.Entry]{
				titles: []string{"ID", "SIZE", "USED", "CACHES", "WORKSPACE"},
				cells: func(e caches.Entry) []string {
					return []string{e.ID, limits.FormatSize(e.Bytes), usedText(e.Used, e.InUse), strings.Join(e.Caches, " "), e.Workspace}
				},
			})
		},
	}, &f, usesConfig, statuses{exitFailed: "the caches can't be read"})
}

func newCachesRemoveCommand(a *app) *cobra.Command {
	var f struct {
		All bool `flag:"all" doc:"remove the caches of every workspace"`
	}
	return newCommand(&cobra.Command{
		Use: "rm [flags] [WORKSPACE|ID]...", Short: "Remove the caches of workspaces",
		Long: `Remove the caches of workspaces, named by path or by the ID that caisson caches ls shows. The next
session on a workspace starts with empty ones.

Caches that no session has used for the time keep_caches are removed anyway.
`,
		Example: "  caisson caches rm ~/src/app\n  caisson caches rm --all",
		RunE: func(_ *cobra.Command, args []string) error {
			if f.All == (len(args) > 0) {
				return newUsageError("name workspaces, or use --all for every workspace")
			}
			s, err := cacheStore(a)
			if err != nil {
				return err
			}
			return removeCaches(a, s, args, f.All)
		},
	}, &f, usesConfig, statuses{exitFailed: "a session uses them, or they can't be removed", exitInput: "a workspace has no caches"})
}

func cacheStore(a *app) (*caches.Store, error) {
	state, err := findState(a.environ)
	return caches.NewStore(state), err
}

// removeCaches removes caches by workspace or ID, or all. It continues after an error.
func removeCaches(a *app, s *caches.Store, names []string, all bool) error {
	list, err := s.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		path := resolvePath(name)
		if !slices.ContainsFunc(list, func(e caches.Entry) bool { return isCachesOf(e, name, path) }) {
			errs = append(errs, newFailure(exitInput, nil, "there are no caches of "+name, "caisson caches ls lists all caches."))
		}
	}
	for _, e := range list {
		if !all && !slices.ContainsFunc(names, func(name string) bool { return isCachesOf(e, name, resolvePath(name)) }) {
			continue
		}
		switch err := s.Remove(e.ID); {
		case errors.Is(err, caches.ErrBusy):
			errs = append(errs, newFailure(exitFailed, err, "the caches of "+e.Workspace+" stay: a session uses them", "End it: caisson sandbox ls shows it."))
		case err != nil:
			errs = append(errs, err)
		default:
			a.printLines(fmt.Sprintf("removed the caches of %s, %s", makeSafe(e.Workspace), limits.FormatSize(e.Bytes)))
		}
	}
	return errors.Join(errs...)
}

// isCachesOf reports whether name is the ID or the workspace of e. path is name without
// symlinks, or "".
func isCachesOf(e caches.Entry, name, path string) bool {
	return e.ID == name || e.Workspace == name || path != "" && e.Workspace == path
}
