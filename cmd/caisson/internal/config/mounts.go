package config

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
)

// Mounts are directories of this machine that commands see.
type Mounts []Mount

// setText parses the value of a flag: FROM:TO or FROM:TO:ro, separated by commas. A
// FROM that begins with . is relative to the working directory.
func (m *Mounts) setText(text string) error {
	*m = nil
	for one := range strings.SplitSeq(text, ",") {
		from, to, ok := strings.Cut(strings.TrimSpace(one), ":")
		to, access, named := strings.Cut(to, ":")
		if !ok || from == "" || to == "" || named && access != "ro" && access != "rw" {
			return fmt.Errorf("invalid mount %q: want FROM:TO or FROM:TO:ro", one)
		}
		if from == "." || from == ".." || strings.HasPrefix(from, "./") || strings.HasPrefix(from, "../") {
			abs, err := filepath.Abs(from)
			if err != nil {
				return err
			}
			from = abs
		}
		mount := Mount{From: &from, To: &to}
		if access == "ro" {
			mount.ReadOnly = new(true)
		}
		*m = append(*m, mount)
	}
	return nil
}

func (m Mount) isReadOnly() bool { return m.ReadOnly != nil && *m.ReadOnly }

// UserMounts returns the user's directories that commands see.
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

// WritableMounts returns the directories besides workspaces that commands may write to,
// in sessions and in sandboxes that clients ask for.
func (c *Config) WritableMounts() []string {
	var out []string
	for _, m := range slices.Concat(c.Mounts, slices.Collect(maps.Values(c.Serve.Sandboxes.Mounts))) {
		if from, err := expandHome(*m.From, c.home); err == nil && !m.isReadOnly() { // after an error there is no session
			out = append(out, from)
		}
	}
	return out
}

// MountError returns an error about mounts, with its place.
func (c *Config) MountError(err error) error {
	e := &Error{Where: "mounts", Message: err.Error(), Hint: "change the mount, or take it out", Err: err}
	if errors.Is(err, runner.ErrWritableMount) {
		e.Hint = "make the mount read_only, or use mode bind"
	}
	mount, ok := errors.AsType[*runner.MountError](err)
	for _, m := range c.Mounts {
		if from, err := expandHome(*m.From, c.home); ok && err == nil && from == mount.From {
			e.Item = *m.From
		}
	}
	return c.addPlace(e)
}

func (c *Config) checkMounts() error {
	for _, m := range c.Mounts {
		if err := m.check("mounts"); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(c.Serve.Sandboxes.Mounts) {
		if err := c.Serve.Sandboxes.Mounts[name].check(joinKey("serve.sandboxes.mounts", name)); err != nil {
			return err
		}
	}
	return nil
}

// check refuses an incomplete mount. Its error is an [Error] at where.
func (m Mount) check(where string) error {
	e := &Error{Where: where, Item: valueOr(m.From, valueOr(m.To, "")), Hint: "write from as a path from / or ~/ on, and to as one from / on"}
	switch {
	case m.From == nil || m.To == nil:
		e.Message = "a mount needs from and to"
	case !path.IsAbs(*m.To) || path.Clean(*m.To) != *m.To:
		e.Message = fmt.Sprintf("%q is no absolute path of the sandbox in its shortest form", *m.To)
		e.Item = *m.To
	case !strings.HasPrefix(*m.From, "/") && !strings.HasPrefix(*m.From, "~/"):
		e.Message = fmt.Sprintf("%q does not begin with / or ~/", *m.From)
	default:
		return nil
	}
	return e
}

// ParseCaches returns the caches. Its error is an [Error].
func (c *Config) ParseCaches() ([]caches.Cache, error) {
	list, err := caches.ParseList(c.Caches)
	if err == nil {
		return list, nil
	}
	e := &Error{Where: "caches", Message: err.Error()}
	if i := slices.IndexFunc(c.Caches, func(name string) bool { _, err := caches.Parse(name); return err != nil }); i >= 0 {
		e.Item = c.Caches[i]
	}
	return nil, e
}

func (c *Config) checkCaches() error {
	_, err := c.ParseCaches()
	return err
}
