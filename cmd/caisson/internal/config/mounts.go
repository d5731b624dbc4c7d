package config

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
)

// Mounts are directories of this machine that commands see.
type Mounts []Mount

// setText parses the value of a flag: FROM:TO or FROM:TO:ro, with commas between them.
func (m *Mounts) setText(text string) error {
	*m = nil
	for one := range strings.SplitSeq(text, ",") {
		from, to, ok := strings.Cut(strings.TrimSpace(one), ":")
		to, access, named := strings.Cut(to, ":")
		if !ok || from == "" || to == "" || named && access != "ro" {
			return fmt.Errorf("invalid mount %q: want FROM:TO or FROM:TO:ro", one)
		}
		mount := Mount{From: &from, To: &to}
		if named {
			mount.ReadOnly = new(true)
		}
		*m = append(*m, mount)
	}
	return nil
}

func (m Mount) isReadOnly() bool { return m.ReadOnly != nil && *m.ReadOnly }

// UserMounts returns the directories of the user that commands see.
func (c *Config) UserMounts() ([]runner.UserMount, error) {
	var out []runner.UserMount
	for _, m := range c.Mounts {
		from, err := expandHome(*m.From, c.home)
		if err != nil {
			return nil, c.MountError(err)
		}
		out = append(out, runner.UserMount{From: from, To: *m.To, ReadOnly: m.isReadOnly()})
	}
	return out, nil
}

// WritableMounts returns the directories that commands of sessions, and of sandboxes of
// [AskedSandbox], may write to besides workspaces.
func (c *Config) WritableMounts() []string {
	var out []string
	for _, m := range slices.Concat(c.Mounts, slices.Collect(maps.Values(c.Serve.Sandboxes.Mounts))) {
		if from, err := expandHome(*m.From, c.home); err == nil && !m.isReadOnly() { // with an error there is no session
			out = append(out, from)
		}
	}
	return out
}

// MountError returns an error about a setting of mounts, with its place.
func (c *Config) MountError(err error) error {
	e := &Error{Where: "mounts", Message: err.Error(), Hint: "change the mount, or take it out", Err: err}
	if errors.Is(err, runner.ErrWritableMount) {
		e.Hint = "make the mount read_only, or use mode bind"
	}
	return c.addPlace(e)
}

// checkMounts refuses mounts that are not complete.
func checkMounts(c *Config) error {
	for _, m := range slices.Concat(c.Mounts, slices.Collect(maps.Values(c.Serve.Sandboxes.Mounts))) {
		var err error
		switch {
		case m.From == nil || m.To == nil:
			err = errors.New("a mount needs from and to")
		case !path.IsAbs(*m.To) || path.Clean(*m.To) != *m.To:
			err = fmt.Errorf("%q is no absolute path of the sandbox in its shortest form", *m.To)
		case !strings.HasPrefix(*m.From, "/") && !strings.HasPrefix(*m.From, "~/"):
			err = fmt.Errorf("%q does not begin with / or ~/", *m.From)
		}
		if err != nil {
			return &Error{Where: "mounts", Message: err.Error(), Hint: "write from as a path from / or ~/ on, and to as one from / on"}
		}
	}
	return nil
}

// CacheNames are names of caches.
type CacheNames []string

// setText parses the value of a flag, with commas between the names.
func (n *CacheNames) setText(text string) error { return (*VariableNames)(n).setText(text) }

// Parse returns the caches of these names. Its error is an [Error].
func (n CacheNames) Parse() ([]caches.Cache, error) {
	list, err := caches.ParseList(n)
	if err != nil {
		return nil, &Error{Where: "caches", Message: err.Error()}
	}
	return list, nil
}

// checkCaches refuses names that no cache has.
func checkCaches(c *Config) error {
	_, err := c.Caches.Parse()
	return err
}
