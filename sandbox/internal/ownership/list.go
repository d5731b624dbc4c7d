package ownership

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/caisson-run/caisson/sandbox"
)

// ReadLists returns the content of the cleanup lists of one backend. It changes
// nothing. Its error names the lists that can't be read; the others are
// returned all the same.
func ReadLists(stateDir, backend string) ([]Document, error) {
	root, err := openListDir(stateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cleanup lists: %w", err)
	}
	defer func() { _ = root.Close() }()
	names, err := listFileNames(root)
	if err != nil {
		return nil, fmt.Errorf("list cleanup lists: %w", err)
	}
	var found []Document
	var errs []error
	for _, name := range names {
		data, err := readListFile(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its session ended meanwhile
		}
		var doc Document
		if err == nil {
			doc, err = parseList(name, data)
		}
		if err != nil {
			if !errors.Is(err, errOtherVersion) || doc.Backend == backend {
				errs = append(errs, fmt.Errorf("read cleanup list %s: %w", name, err))
			}
			continue
		}
		if doc.Backend == backend {
			found = append(found, doc)
		}
	}
	return found, errors.Join(errs...)
}

// Listing returns the listing of the sandbox, without what the engine or
// runtime knows.
func (n Document) Listing(instance string) sandbox.Listing {
	l := sandbox.Listing{
		Session: n.Session, Backend: n.Backend, Image: n.Image, Workspace: n.Workspace, Since: n.Began,
		State: sandbox.ListedUnknown, Owner: n.Owner.ListedOwner(instance), GivenUp: n.Abandoned,
	}
	for _, e := range n.Entries {
		if e.Kind == KindContainer {
			l.Container = e.Name
		}
	}
	return l
}

// ListedOwner returns the owner for a listing.
func (id Identity) ListedOwner(instance string) sandbox.ListedOwner {
	return sandbox.ListedOwner{PID: id.PID, Start: id.Start, State: id.Fate(instance).String()}
}
