package lifecycle

import (
	"errors"
	"fmt"
	"os"

	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/tools/workspace"
)

// claim holds the property of one sandbox on this machine: its entries in the
// session's cleanup list, and the directory of the session's files. It sets
// Preparation.Cleanup and Preparation.Files.
type claim struct {
	prep    *Preparation
	entries []int // of the container and the files in the cleanup list; nil before they are in it
}

// makeClaim opens the session's cleanup list, adds planned, which the container
// consists of on the host, and makes the directory of the session's files.
func (c *claim) makeClaim(o ownership.CleanupOptions, planned []ownership.Entry) error {
	var err error
	c.prep.Cleanup, err = ownership.OpenCleanupList(o)
	if err != nil {
		return err
	}
	planned = append(planned, ownership.Entry{Kind: ownership.KindDirectory, Path: filesDir})
	if c.entries, err = c.prep.Cleanup.Add(planned...); err != nil {
		return err
	}
	c.prep.Files, err = newFiles(c.prep.Spec.Dir)
	return err
}

// isListed reports whether the cleanup list has the container.
func (c *claim) isListed() bool { return c.entries != nil }

// withdraw removes the session's files and the entries from the cleanup list,
// and closes the list. The container must be removed.
func (c *claim) withdraw() error {
	if c.prep.Cleanup == nil {
		return nil
	}
	if c.entries != nil {
		if err := c.removeFiles(); err != nil {
			return err
		}
		c.prep.Cleanup.Drop(c.entries...)
	}
	if err := c.prep.Cleanup.Close(); err != nil {
		return err
	}
	c.prep.Cleanup, c.entries = nil, nil
	return nil
}

// removeFiles removes the directory of the session's files.
func (c *claim) removeFiles() error {
	base, err := os.Open(c.prep.Spec.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove session files: %w", err)
	}
	defer func() { _ = base.Close() }()
	if err := workspace.RemoveTreeAt(base, filesDir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove session files: %w", err)
	}
	return nil
}

// giveUp lets any sweep remove what is left. It returns err, joined with an
// error of its own.
func (c *claim) giveUp(err error) error {
	if c.prep.Cleanup == nil {
		return err
	}
	return errors.Join(err, c.prep.Cleanup.GiveUp())
}
