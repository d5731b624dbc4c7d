package ownership

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
)

const (
	// listDir contains the cleanup lists, below the state directory.
	listDir = "cleanup"
	// listVersion changes if an old reader could misread a new list or would
	// not know one of its fields.
	listVersion = 2
	// maxListSize bounds the lists that are read, in bytes. A session has a
	// dozen entries of about 200 bytes.
	maxListSize = 1 << 20
)

// errOtherVersion means that only another version of Caisson can process a
// list.
var errOtherVersion = errors.New("written by another version of Caisson")

// CleanupList lists what one session made, in one file below the state
// directory:
//
//	{"version":2,"backend":"docker","session":"ses_…","owner":{…},"dir":"sessions/ses_…/sandbox","began":"2026-11-20T10:00:00Z","image":"host","workspace":"/home/me/p","entries":[{"id":1,"kind":"mount","path":"workspace"}]}
//
// An entry is written before the thing is made. That is enough if the process
// is killed. A file with a placeholder is also synced to the disk: only
// placeholders survive a loss of power. A lock beside the file is held while
// the list is open. It shows a sweep in another PID namespace, which can't see
// the owner, that the owner is alive. The caller must call [CleanupList.Close]
// when everything has been removed. It is safe for concurrent use.
type CleanupList struct {
	mu     sync.Mutex
	root   *os.Root // nil once closed
	dir    string   // its path, for locks
	lock   *state.Lock
	doc    Document
	next   int
	synced bool // the directory was synced since the file contains a placeholder
}

// Document is the content of a cleanup list's file.
type Document struct {
	Version int      `json:"version"`
	Backend string   `json:"backend"`
	Session string   `json:"session"`
	Owner   Identity `json:"owner"`
	Dir     string   `json:"dir"` // of the session, relative to the state directory
	// Began, Image and Workspace are for people who list sandboxes.
	Began     time.Time `json:"began"`
	Image     string    `json:"image"`
	Workspace string    `json:"workspace"`
	// Abandoned reports that the owner could not remove everything. Any process
	// may then remove the rest, even if the owner is alive.
	Abandoned bool            `json:"abandoned,omitempty"`
	Entries   []NumberedEntry `json:"entries"`
}

// NumberedEntry is an entry with its number in the list.
type NumberedEntry struct {
	ID int `json:"id"`
	Entry
}

// CleanupOptions describes a new cleanup list. All fields except Image and
// Workspace are required.
type CleanupOptions struct {
	// StateDir is the state directory; see [state.CheckDir].
	StateDir string
	// Backend is the name of the backend that will sweep the list.
	Backend string
	Session string
	Owner   Identity
	// Dir is the session's own directory: absolute, below StateDir, with the
	// session's ID as one of its elements.
	Dir string
	// Image and Workspace are as requested by the session.
	Image, Workspace string
}

// OpenCleanupList creates the cleanup list of a session. It returns
// sandbox.ErrInvalid if the session already has a list or the directory is not
// the session's, and a [state.DirError] if the state directory is unsafe.
func OpenCleanupList(o CleanupOptions) (*CleanupList, error) {
	if !isPlainWord(o.Session) || !isPlainWord(o.Backend) {
		return nil, fmt.Errorf("open cleanup list: %w: session %q or backend %q is not a plain word", sandbox.ErrInvalid, o.Session, o.Backend)
	}
	dir, err := relativeDir(o.StateDir, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open cleanup list: %w", err)
	}
	if err := checkSessionDir(dir, o.Session); err != nil {
		return nil, fmt.Errorf("open cleanup list: %w: %w", sandbox.ErrInvalid, err)
	}
	root, err := openListDir(o.StateDir, true)
	if err != nil {
		return nil, fmt.Errorf("open cleanup list: %w", err)
	}
	j := &CleanupList{root: root, dir: filepath.Join(o.StateDir, listDir), doc: Document{
		Version: listVersion, Backend: o.Backend, Session: o.Session, Owner: o.Owner, Dir: dir,
		Began: time.Now().UTC().Truncate(time.Second), Image: limitText(o.Image), Workspace: limitText(o.Workspace),
	}}
	if err := j.createFile(); err != nil {
		return nil, errors.Join(fmt.Errorf("open cleanup list: %w", err), j.lock.Release(), root.Close())
	}
	return j, nil
}

func (j *CleanupList) createFile() (err error) {
	j.lock, err = state.TryAcquire(filepath.Join(j.dir, lockName(j.doc.Session)))
	held := errors.Is(err, state.ErrHeld)
	if err != nil && !held {
		return err
	}
	if _, err := j.root.Lstat(j.fileName()); err == nil || held {
		return fmt.Errorf("%w: session %s has one: %w", sandbox.ErrInvalid, j.doc.Session, fs.ErrExist)
	}
	return j.writeFile()
}

// ownerLock returns the path of the lock that a list's owner holds.
func ownerLock(stateDir, session string) string {
	return filepath.Join(stateDir, listDir, lockName(session))
}

func lockName(session string) string { return "." + session + ".lock" }

// relativeDir returns dir relative to base. It resolves symlinks in both,
// because the state directory may be behind one (/var/run).
func relativeDir(base, dir string) (string, error) {
	base, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	return filepath.Rel(base, dir)
}

// Add adds entries and returns their numbers once they are written. Make the
// things afterwards, never before.
func (j *CleanupList) Add(entries ...Entry) ([]int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.doc.Entries
	var ids []int
	for _, e := range entries {
		if err := e.Validate(j.doc.Session); err != nil {
			j.doc.Entries = before
			return nil, fmt.Errorf("add %s to cleanup list: %w", e.Kind, err)
		}
		j.next++
		ids = append(ids, j.next)
		j.doc.Entries = append(slices.Clip(j.doc.Entries), NumberedEntry{ID: j.next, Entry: e})
	}
	if err := j.writeFile(); err != nil {
		j.doc.Entries = before
		return nil, fmt.Errorf("add to cleanup list: %w", err)
	}
	return ids, nil
}

// Update replaces an entry, for example with a placeholder whose inode is now
// known.
func (j *CleanupList) Update(id int, e Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := j.indexOf(id)
	if i < 0 {
		return fmt.Errorf("update cleanup list: no entry %d", id)
	}
	if err := e.Validate(j.doc.Session); err != nil {
		return fmt.Errorf("update cleanup list: %w", err)
	}
	entries := slices.Clone(j.doc.Entries)
	entries[i].Entry = e
	return j.replaceEntries(entries)
}

// Forget removes entries whose things are gone. It ignores unknown numbers.
func (j *CleanupList) Forget(ids ...int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.replaceEntries(j.entriesWithout(ids))
}

// Drop is Forget without writing the file. A sweep in the meantime finds
// nothing in the entries' places.
func (j *CleanupList) Drop(ids ...int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.doc.Entries = j.entriesWithout(ids)
}

func (j *CleanupList) entriesWithout(ids []int) []NumberedEntry {
	return slices.DeleteFunc(slices.Clone(j.doc.Entries), func(r NumberedEntry) bool { return slices.Contains(ids, r.ID) })
}

// Entries returns a copy of the entries, in the order they were added.
func (j *CleanupList) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Entry
	for _, r := range j.doc.Entries {
		out = append(out, r.Entry)
	}
	return out
}

// GiveUp records that the owner could not remove everything. Any [Sweep] may
// then try while the owner is alive, and so may the owner.
func (j *CleanupList) GiveUp() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.giveUpLocked()
}

func (j *CleanupList) giveUpLocked() error {
	if j.root == nil {
		return nil
	}
	j.doc.Abandoned = true
	if err := errors.Join(j.writeFile(), j.lock.Release()); err != nil {
		return fmt.Errorf("give up cleanup list: %w", err)
	}
	return nil
}

// Close removes the file if it has no entries left; otherwise it calls GiveUp.
// A second call does nothing.
func (j *CleanupList) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.root == nil {
		return nil
	}
	defer func() {
		_ = j.lock.Release()
		_ = j.root.Close()
		j.root = nil
	}()
	if len(j.doc.Entries) > 0 {
		return j.giveUpLocked()
	}
	return removeListFiles(j.root, j.doc.Session)
}

func removeListFiles(root *os.Root, session string) error {
	for _, name := range []string{session + ".json", lockName(session)} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cleanup list: %w", err)
		}
	}
	return nil
}

func (j *CleanupList) fileName() string { return j.doc.Session + ".json" }

func (j *CleanupList) indexOf(id int) int {
	return slices.IndexFunc(j.doc.Entries, func(r NumberedEntry) bool { return r.ID == id })
}

func (j *CleanupList) replaceEntries(entries []NumberedEntry) error {
	before := j.doc.Entries
	j.doc.Entries = entries
	if err := j.writeFile(); err != nil {
		j.doc.Entries = before
		return fmt.Errorf("update cleanup list: %w", err)
	}
	return nil
}

// writeFile writes the whole file beside the old one and renames it, so readers
// see one or the other. It syncs the directory when the file first contains a
// placeholder. A later rename may be lost, because older versions contain the
// placeholder too. It doesn't use package atomicwriter, which goes by paths and
// syncs each file: a list is written below the handle of a checked directory,
// several times per start, and mostly needs no sync.
func (j *CleanupList) writeFile() error {
	if j.root == nil {
		return fs.ErrClosed
	}
	data, err := json.Marshal(j.doc)
	if err != nil {
		return err
	}
	temp := "." + j.fileName() + ".new"
	f, err := j.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	durable := slices.ContainsFunc(j.doc.Entries, func(r NumberedEntry) bool { return r.Kind == KindPlaceholder })
	_, err = f.Write(append(data, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, j.root.Remove(temp)) // half written, on a full disk
	}
	if err := j.root.Rename(temp, j.fileName()); err != nil {
		return err
	}
	if durable && !j.synced {
		err = state.SyncDir(j.dir)
	}
	j.synced = durable
	return err
}

// limitText makes a user's text survive the exact comparison in parseList.
func limitText(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 4096)], "?")
}

// readList reads the cleanup list in the file called name; see parseList.
func readList(root *os.Root, name string) (Document, error) {
	data, err := readListFile(root, name)
	if err != nil {
		return Document{}, err
	}
	return parseList(name, data)
}

// parseList decodes and checks the cleanup list in the file called name. It
// must be byte for byte what [CleanupList] writes: a repeated or differently
// spelled key, an unknown field or trailing text is damage. For another
// version's list ([errOtherVersion]) it returns only the backend.
func parseList(name string, data []byte) (Document, error) {
	var head struct {
		Version int    `json:"version"`
		Backend string `json:"backend"`
	}
	// The version first: other versions' fields may mean anything.
	if json.Unmarshal(data, &head) == nil && head.Version > 0 && head.Version != listVersion {
		return Document{Backend: head.Backend}, fmt.Errorf("version %d: %w", head.Version, errOtherVersion)
	}
	var doc Document
	if err := json.Unmarshal(data, &doc); err != nil {
		return Document{}, err
	}
	again, err := json.Marshal(doc)
	if err != nil {
		return Document{}, err
	}
	if !bytes.Equal(again, bytes.TrimSuffix(data, []byte("\n"))) {
		return Document{}, errors.New("it is not as Caisson writes it: a field is repeated, unknown or spelled otherwise")
	}
	switch {
	case doc.Version != listVersion:
		return Document{}, fmt.Errorf("version %d", doc.Version)
	case !isPlainWord(doc.Session) || doc.Session+".json" != name:
		return Document{}, fmt.Errorf("session %q does not fit the file's name", doc.Session)
	case !isPlainWord(doc.Backend):
		return Document{}, fmt.Errorf("backend %q", doc.Backend)
	}
	if err := checkSessionDir(doc.Dir, doc.Session); err != nil {
		return Document{}, err
	}
	for i, r := range doc.Entries {
		if err := r.Validate(doc.Session); err != nil {
			return Document{}, fmt.Errorf("entry %d: %w", r.ID, err)
		}
		if r.ID <= 0 || slices.ContainsFunc(doc.Entries[:i], func(o NumberedEntry) bool { return o.ID == r.ID }) {
			return Document{}, fmt.Errorf("entry %d: its number is not its own", r.ID)
		}
	}
	return doc, nil
}

// openListDir opens the directory of the cleanup lists below stateDir, and
// creates it if create is set. It refuses one that others could write to.
func openListDir(stateDir string, create bool) (*os.Root, error) {
	if err := state.CheckDir(stateDir); err != nil {
		return nil, err
	}
	dir := filepath.Join(stateDir, listDir)
	if create {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return state.OpenDir(dir)
}

// ReadLists returns the cleanup lists of one backend. If some can't be read, it
// returns the others and an error that names them.
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
		doc, err := readList(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its session ended meanwhile
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

// Listing returns the sandbox's listing, without what only the engine or
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
