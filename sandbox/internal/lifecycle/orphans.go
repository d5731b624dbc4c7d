package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// Sweep removes what sandboxes of dead owners left; see sandbox.Backend.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Orphan, error) {
	self, err := b.Owner()
	if err != nil {
		return nil, fmt.Errorf("sweep %s sandboxes: %w", b.Name, err)
	}
	orphans, unlistedErr := b.driver.RemoveUnlisted(ctx)
	listed, listedErr := ownership.Sweep(ctx, ownership.SweepOptions{
		StateDir: b.StateDir, Backend: b.Name, Instance: self.Instance, RemoveEntry: b.driver.RemoveEntry,
	})
	orphans = append(orphans, listed...)
	if err := errors.Join(unlistedErr, listedErr, b.driver.Prune(ctx), pruneCache(CacheDir(b.StateDir), time.Now())); err != nil {
		return orphans, fmt.Errorf("sweep %s sandboxes: %w", b.Name, err)
	}
	return orphans, nil
}

// List returns the sandboxes of cleanup lists, and those that the engine alone
// knows; see sandbox.Backend.
func (b *Backend) List(ctx context.Context) ([]sandbox.Listing, error) {
	self, err := b.Owner()
	if err != nil {
		return nil, fmt.Errorf("list %s sandboxes: %w", b.Name, err)
	}
	noted, err := ownership.ReadLists(b.StateDir, b.Name)
	listed := map[string]*Listed{}
	for _, n := range noted {
		listed[n.Session] = &Listed{Listing: n.Listing(self.Instance), Entries: n.Entries}
	}
	err = errors.Join(err, b.driver.Inspect(ctx, listed))
	list := make([]sandbox.Listing, 0, len(listed))
	for l := range maps.Values(listed) {
		list = append(list, l.Listing)
	}
	slices.SortFunc(list, func(a, b sandbox.Listing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Session, b.Session))
	})
	if err != nil {
		return list, fmt.Errorf("list %s sandboxes: %w", b.Name, err)
	}
	return list, nil
}
