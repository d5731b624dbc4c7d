package owner

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

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/sandbox"
)

const (
	// journalDir is where the journals lie below the state folder.
	journalDir = "journal"
	// journalVersion changes when an old reader could misread a new journal,
	// or would not know a field of it.
	journalVersion = 2
	// maxJournal bounds what is read; a session has a dozen entries of about
	// 200 bytes.
	maxJournal = 1 << 20
)

// errVersion says that another version of Caisson wrote a journal, which alone
// can undo it.
var errVersion = errors.New("written by another version of Caisson")

// Journal is the list of what one session made, kept in one file below the
// state folder:
//
//	{"version":2,"backend":"docker","session":"ses_…","owner":{…},"dir":"sessions/ses_…/sandbox","began":"2026-11-20T10:00:00Z","image":"host","workspace":"/home/me/p","entries":[{"id":1,"kind":"mount","path":"workspace"}]}
//
// An entry is written before the thing is made. That is enough for a process
// that is killed; a file that notes a placeholder is also synced to the disk,
// because a placeholder alone outlives a loss of power. A lock beside
// the file is held as long as the journal is open: it tells a sweep in another
// PID namespace, which can't see the owner, that the owner lives. Whoever
// opened the journal calls [Journal.Close] when everything is undone. It is
// safe for concurrent use.
type Journal struct {
	mu     sync.Mutex
	root   *os.Root // nil once closed
	folder string   // its path, for locks
	lock   *flock.Flock
	doc    document
	next   int
	synced bool // whether the folder was, since it notes a placeholder
}

// document is the content of a journal's file.
type document struct {
	Version int      `json:"version"`
	Backend string   `json:"backend"`
	Session string   `json:"session"`
	Owner   Identity `json:"owner"`
	Dir     string   `json:"dir"`
	// Began, Image and Workspace are for people who list sandboxes.
	Began     time.Time `json:"began"`
	Image     string    `json:"image"`
	Workspace string    `json:"workspace"`
	// Abandoned says that the owner closed the journal although it could not
	// undo everything: anybody may, although the owner may still live.
	Abandoned bool     `json:"abandoned,omitempty"`
	Entries   []record `json:"entries"`
}

// record is an entry with its number in the journal.
type record struct {
	ID int `json:"id"`
	Entry
}

// JournalOptions says whose journal to begin. All fields but Image and
// Workspace, which are for a list, are required.
type JournalOptions struct {
	// StateDir is the state folder; see [CheckStateDir].
	StateDir string
	// Backend is the name of the backend that will sweep it.
	Backend string
	Session string
	Owner   Identity
	// Dir is the session's own folder: absolute, below StateDir, with the
	// session's id as one of its elements.
	Dir string
	// Image and Workspace are as the session asked for them.
	Image, Workspace string
}

// OpenJournal begins the journal of a session and writes it. It fails with
// sandbox.ErrInvalid for a folder that is not the session's and where the
// session has a journal already, with [ErrStateDir] for an unsafe state folder.
func OpenJournal(o JournalOptions) (*Journal, error) {
	if !validWord(o.Session) || !validWord(o.Backend) {
		return nil, fmt.Errorf("open journal: %w: session %q or backend %q is not a plain word", sandbox.ErrInvalid, o.Session, o.Backend)
	}
	dir, err := relativeDir(o.StateDir, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := validDir(dir, o.Session); err != nil {
		return nil, fmt.Errorf("open journal: %w: %w", sandbox.ErrInvalid, err)
	}
	root, err := openJournals(o.StateDir, true)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &Journal{root: root, folder: filepath.Join(o.StateDir, journalDir), lock: ownerLock(o.StateDir, o.Session), doc: document{
		Version: journalVersion, Backend: o.Backend, Session: o.Session, Owner: o.Owner, Dir: dir,
		Began: time.Now().UTC().Truncate(time.Second), Image: text(o.Image), Workspace: text(o.Workspace),
	}}
	if err := j.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal: %w", err), j.lock.Close(), root.Close())
	}
	return j, nil
}

func (j *Journal) begin() error {
	locked, err := j.lock.TryLock()
	if err != nil {
		return err
	}
	if _, err := j.root.Lstat(j.name()); err == nil || !locked {
		return fmt.Errorf("%w: session %s has one: %w", sandbox.ErrInvalid, j.doc.Session, fs.ErrExist)
	}
	return j.save()
}

// ownerLock is the lock that the owner of a session's journal holds.
func ownerLock(stateDir, session string) *flock.Flock {
	return flock.New(filepath.Join(stateDir, journalDir, lockName(session)))
}

func lockName(session string) string { return "." + session + ".lock" }

// relativeDir gives dir relative to base, links in both resolved, so that a
// state folder behind a link (/var/run) is no obstacle.
func relativeDir(base, dir string) (string, error) {
	base, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	rel, err := filepath.Rel(base, dir)
	if err != nil {
		return "", err
	}
	return filepath.ToSlash(rel), nil
}

// Session is the session's id, Owner who made it, Dir its folder relative to
// the state folder.
func (j *Journal) Session() string { return j.doc.Session }

// Owner is the process that began the journal.
func (j *Journal) Owner() Identity { return j.doc.Owner }

// Dir is the session's folder, relative to the state folder, with slashes.
func (j *Journal) Dir() string { return j.doc.Dir }

// Add notes entries and returns their numbers once they are written. Make the
// things after it, never before.
func (j *Journal) Add(entries ...Entry) ([]int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.doc.Entries
	var ids []int
	for _, e := range entries {
		if err := e.Validate(j.doc.Session); err != nil {
			j.doc.Entries = before
			return nil, fmt.Errorf("note %s: %w", e.Kind, err)
		}
		j.next++
		ids = append(ids, j.next)
		j.doc.Entries = append(slices.Clip(j.doc.Entries), record{ID: j.next, Entry: e})
	}
	if err := j.save(); err != nil {
		j.doc.Entries = before
		return nil, fmt.Errorf("note in journal: %w", err)
	}
	return ids, nil
}

// Update replaces an entry, such as a placeholder whose inode is known now.
func (j *Journal) Update(id int, e Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := j.index(id)
	if i < 0 {
		return fmt.Errorf("update journal: no entry %d", id)
	}
	if err := e.Validate(j.doc.Session); err != nil {
		return fmt.Errorf("update journal: %w", err)
	}
	entries := slices.Clone(j.doc.Entries)
	entries[i].Entry = e
	return j.replace(entries)
}

// Forget removes entries whose things are undone. An unknown number is no error.
func (j *Journal) Forget(ids ...int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.replace(slices.DeleteFunc(slices.Clone(j.doc.Entries), func(r record) bool {
		return slices.Contains(ids, r.ID)
	}))
}

// Entries returns a copy of what is noted, in the order of Add.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Entry
	for _, r := range j.doc.Entries {
		out = append(out, r.Entry)
	}
	return out
}

// GiveUp says that the owner could not undo everything: any [Sweep] may, also
// while the owner lives, which may try again too.
func (j *Journal) GiveUp() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.giveUp()
}

func (j *Journal) giveUp() error {
	if j.root == nil {
		return nil
	}
	j.doc.Abandoned = true
	if err := errors.Join(j.save(), j.lock.Unlock()); err != nil {
		return fmt.Errorf("give up journal: %w", err)
	}
	return nil
}

// Close removes the file if no entry is left, and gives it up to [Sweep]
// otherwise. A second call does nothing.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.root == nil {
		return nil
	}
	defer func() {
		j.lock.Close()
		j.root.Close()
		j.root = nil
	}()
	if len(j.doc.Entries) > 0 {
		return j.giveUp()
	}
	return removeJournal(j.root, j.doc.Session)
}

func removeJournal(root *os.Root, session string) error {
	for _, name := range []string{session + ".json", lockName(session)} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove journal: %w", err)
		}
	}
	return nil
}

func (j *Journal) name() string { return j.doc.Session + ".json" }

func (j *Journal) index(id int) int {
	return slices.IndexFunc(j.doc.Entries, func(r record) bool { return r.ID == id })
}

func (j *Journal) replace(entries []record) error {
	before := j.doc.Entries
	j.doc.Entries = entries
	if err := j.save(); err != nil {
		j.doc.Entries = before
		return fmt.Errorf("update journal: %w", err)
	}
	return nil
}

// save writes the whole file beside the old one and renames it, so that a
// reader sees one or the other. The folder is synced when the file first notes
// a placeholder: later renames may be lost, as each file notes it too.
func (j *Journal) save() error {
	if j.root == nil {
		return fs.ErrClosed
	}
	data, err := json.Marshal(j.doc)
	if err != nil {
		return err
	}
	temp := "." + j.name() + ".new"
	f, err := j.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	durable := slices.ContainsFunc(j.doc.Entries, func(r record) bool { return r.Kind == KindPlaceholder })
	_, err = f.Write(append(data, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, j.root.Remove(temp)) // half written, on a full disk
	}
	if err := j.root.Rename(temp, j.name()); err != nil {
		return err
	}
	if durable && !j.synced {
		err = syncDir(j.root)
	}
	j.synced = durable
	return err
}

func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// text makes what a user named fit for a journal, which is read back exactly.
func text(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 4096)], "?")
}

// parseJournal decodes and checks a journal whose file is called name. A
// journal is what [Journal] writes, byte for byte: a repeated key, another
// spelling of one, an unknown field or text behind the document is damage. Of
// another version's ([errVersion]) it gives the backend alone.
func parseJournal(name string, data []byte) (document, error) {
	var head struct {
		Version int    `json:"version"`
		Backend string `json:"backend"`
	}
	// The version first: another version's other fields may mean anything.
	if json.Unmarshal(data, &head) == nil && head.Version > 0 && head.Version != journalVersion {
		return document{Backend: head.Backend}, fmt.Errorf("version %d: %w", head.Version, errVersion)
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return document{}, err
	}
	again, err := json.Marshal(doc)
	if err != nil {
		return document{}, err
	}
	if !bytes.Equal(again, bytes.TrimSuffix(data, []byte("\n"))) {
		return document{}, errors.New("it is not as Caisson writes it: a field is repeated, unknown or spelled otherwise")
	}
	switch {
	case doc.Version != journalVersion:
		return document{}, fmt.Errorf("version %d", doc.Version)
	case !validWord(doc.Session) || doc.Session+".json" != name:
		return document{}, fmt.Errorf("session %q does not fit the file's name", doc.Session)
	case !validWord(doc.Backend):
		return document{}, fmt.Errorf("backend %q", doc.Backend)
	}
	if err := validDir(doc.Dir, doc.Session); err != nil {
		return document{}, err
	}
	for i, r := range doc.Entries {
		if err := r.Validate(doc.Session); err != nil {
			return document{}, fmt.Errorf("entry %d: %w", r.ID, err)
		}
		if r.ID <= 0 || slices.ContainsFunc(doc.Entries[:i], func(o record) bool { return o.ID == r.ID }) {
			return document{}, fmt.Errorf("entry %d: its number is not its own", r.ID)
		}
	}
	return doc, nil
}
