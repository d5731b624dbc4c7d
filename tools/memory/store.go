package memory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits/state"
)

// Bounds of one workspace's notes. A model reads them all at the start of a
// session, so they may fill only a small part of its context.
const (
	MaxNotes     = 100
	MaxNoteBytes = 2_000
	MaxBytes     = 32 << 10 // of all texts together
	maxFileBytes = 1 << 20
)

// lockTime limits the wait for another process that changes the same notes.
const lockTime = 5 * time.Second

// Errors of a [Store].
var (
	// ErrFull means that a change would exceed MaxNotes or MaxBytes.
	ErrFull = errors.New("memory is full")
	// ErrNoNote means that no note has the ID.
	ErrNoNote = errors.New("no such note")
	// ErrChanged means that the notes changed since they were shown.
	ErrChanged = errors.New("memory has changed")
	// ErrText means that a note's text is empty, too long, or not UTF-8.
	ErrText = errors.New("no text for a note")
)

// Note is one note.
type Note struct {
	// ID is "m" and a number. IDs are never reused.
	ID   string `json:"id"`
	Text string `json:"text"`
	// Session is the ID of the session that last changed the note, at Changed.
	Session string    `json:"session,omitempty"`
	Changed time.Time `json:"changed"`
}

// Notes are all notes of one workspace, as stored.
type Notes struct {
	Version   int    `json:"version"`
	Workspace string `json:"workspace"`
	// Last is the number in the newest ID.
	Last  int    `json:"last"`
	Notes []Note `json:"notes"`
}

const fileVersion = 1

// Store keeps one workspace's notes in one file. Any number of stores and processes
// may use the same file: each change locks it, reads it and replaces it. A Store
// holds nothing open between calls.
type Store struct {
	dir       string
	workspace string
	now       func() time.Time
}

const (
	notesFile = "notes.json"
	lockFile  = "lock"
)

// NewStore returns the store of a workspace. The first change creates its directory
// below dir.
func NewStore(dir, workspace string) *Store {
	sum := sha256.Sum256([]byte(workspace))
	return &Store{dir: filepath.Join(dir, hex.EncodeToString(sum[:16])), workspace: workspace, now: time.Now}
}

// Dir returns the directory of the workspace's notes.
func (s *Store) Dir() string { return s.dir }

// Read returns the notes, or none if there is no file yet. It fails if the file was
// not written by a Store. The next change then moves it aside.
func (s *Store) Read() (Notes, error) {
	text, err := state.Read(s.path(), maxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s.emptyNotes(), nil
	}
	var n Notes
	if err == nil {
		n, err = s.parseNotes(text)
	}
	if err != nil {
		return Notes{}, fmt.Errorf("read memory: %w", err)
	}
	return n, nil
}

func (s *Store) path() string { return filepath.Join(s.dir, notesFile) }

func (s *Store) emptyNotes() Notes { return Notes{Version: fileVersion, Workspace: s.workspace} }

// parseNotes is strict: it accepts only files of this workspace, version and shape,
// within the bounds.
func (s *Store) parseNotes(text []byte) (Notes, error) {
	var n Notes
	err := state.Decode(text, &n)
	switch {
	case err != nil:
	case n.Version != fileVersion:
		err = fmt.Errorf("version %d", n.Version)
	case n.Workspace != s.workspace:
		err = errors.New("it is of another workspace")
	default:
		err = n.checkBounds()
	}
	if err != nil {
		return Notes{}, fmt.Errorf("%w: %w", state.ErrDamaged, err)
	}
	return n, nil
}

func (n Notes) checkBounds() error {
	total := 0
	for _, note := range n.Notes {
		if note.Text == "" || len(note.Text) > MaxNoteBytes || !utf8.ValidString(note.Text) {
			return fmt.Errorf("%w: 1 to %d bytes, %q has %d", ErrText, MaxNoteBytes, note.ID, len(note.Text))
		}
		total += len(note.Text)
	}
	if len(n.Notes) > MaxNotes || total > MaxBytes {
		return fmt.Errorf("%w: %d notes of %d bytes together; at most %d of %d", ErrFull, len(n.Notes), total, MaxNotes, MaxBytes)
	}
	return nil
}

// State returns a hash of the notes' IDs and texts.
func (n Notes) State() string {
	sum := sha256.New()
	for _, note := range n.Notes {
		fmt.Fprintf(sum, "%q %q\n", note.ID, note.Text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// String returns the notes for a model or a diff, each on one or more lines.
func (n Notes) String() string {
	var b strings.Builder
	for _, note := range n.Notes {
		fmt.Fprintf(&b, "%s: %s\n", note.ID, strings.ReplaceAll(note.Text, "\n", "\n  "))
	}
	return b.String()
}

// Change calls f to change the notes, and stores the result if f returns no error.
// If ifState is not "", the notes must have this [Notes.State]. A file that can't
// be read is moved aside first. aside is then its new name.
func (s *Store) Change(ctx context.Context, ifState string, f func(n *Notes) error) (after Notes, aside string, err error) {
	lock, err := state.Acquire(ctx, filepath.Join(s.dir, lockFile), lockTime)
	if err != nil {
		return Notes{}, "", fmt.Errorf("change memory: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	n, err := s.Read()
	if errors.Is(err, state.ErrDamaged) {
		if aside, err = state.SetAside(s.path(), s.now()); err != nil {
			return Notes{}, "", fmt.Errorf("change memory: %w", err)
		}
		n, aside = s.emptyNotes(), filepath.Base(aside)
	}
	if err != nil {
		return Notes{}, "", err
	}
	if ifState != "" && ifState != n.State() {
		return n, aside, ErrChanged
	}
	if err := f(&n); err != nil {
		return n, aside, err
	}
	if err := n.checkBounds(); err != nil {
		return n, aside, err
	}
	if err := state.ReplaceJSON(s.path(), n); err != nil {
		return n, aside, fmt.Errorf("write memory: %w", err)
	}
	return n, aside, nil
}

// add appends a note with a new ID.
func (n *Notes) add(note Note) {
	n.Last++
	note.ID = fmt.Sprintf("m%d", n.Last)
	n.Notes = append(n.Notes, note)
}

func (n *Notes) findNote(id string) (int, error) {
	for i, note := range n.Notes {
		if note.ID == id {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrNoNote, id)
}
