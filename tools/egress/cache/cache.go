// Package cache keeps files of package registries, for all sessions of a machine or
// for one. Only the host writes to it, from its own requests. A program decides
// their URL and Accept header and nothing else, so none of its other headers can
// affect what other programs get.
//
// The cache holds complete answers with status 200 to GET requests without
// credentials, by URL and Accept. Contents are named by their SHA-256. It is
// checked whenever they are sent, and checked against the digest in the registry's
// index, if any. Files are immutable. An index is revalidated after five minutes.
//
// The directory has
//
//	content/ab/abcd…           contents, by SHA-256
//	entries/ab/abcd…-ef01….json  facts about a URL and Accept, by their SHA-256
//	tmp/                       downloads and their locks
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/caisson-run/caisson/limits/state"
)

// Kind is the kind of a URL.
type Kind string

// The kinds. An index is valid for [IndexAge]; a file never changes.
const (
	File  Kind = "file"
	Index Kind = "index"
)

// IndexAge is how long an index is used before it is revalidated.
const IndexAge = 5 * time.Minute

// Bounds of the contents on disk. The least recently used ones are removed first. A
// content that is larger than defaultMaxFileBytes is not kept.
const (
	defaultMaxBytes     = 10 << 30
	defaultMaxFileBytes = 2 << 30
)

// Cache is a directory of contents. It is safe for concurrent use, also by several
// processes.
type Cache struct {
	dir          string
	temporary    bool
	maxBytes     int64
	maxFileBytes int64
	now          func() time.Time
	// lockTime bounds the wait for another process's download.
	lockTime time.Duration

	mu      sync.Mutex
	flights map[string]*flight
	used    int64 // bytes of contents, at least
}

// Open opens the cache in a directory and creates it if needed. A temporary one is
// used by this process only, and removed with it: nothing is synced to the disk, and
// downloads are not locked.
func Open(dir string, temporary bool) (*Cache, error) {
	c := &Cache{
		dir: dir, temporary: temporary, maxBytes: defaultMaxBytes, maxFileBytes: defaultMaxFileBytes,
		now: time.Now, lockTime: 10 * time.Second, flights: map[string]*flight{},
	}
	for _, sub := range []string{"content", "entries", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("create a cache: %w", err)
		}
		info, err := os.Stat(filepath.Join(dir, sub))
		if err != nil {
			return nil, fmt.Errorf("open a cache: %w", err)
		}
		if why := state.UnsafeReason(info); why != "" { // entries don't prove who wrote them
			return nil, fmt.Errorf("open a cache: %s %s", filepath.Join(dir, sub), why)
		}
	}
	old := func(string) bool { return true } // left by killed processes
	if err := state.Expire(filepath.Join(dir, "tmp"), c.now().Add(-24*time.Hour), old); err != nil {
		return nil, fmt.Errorf("remove from a cache: %w", err)
	}
	return c, c.removeUnused()
}

// A program chooses the Accept header. Entries store it and last as long as their
// content, so it is bounded.
const (
	maxAcceptBytes = 1024
	// maxVariants is the number of Accept headers kept for one URL.
	maxVariants = 16
)

// Request is a request to answer from the cache, or from the network and keep.
type Request struct {
	URL    string
	Accept string // the header, "" for none
	Kind   Kind
	// Digest is the digest that a file's content must have, or the zero value if no
	// index has one.
	Digest Digest
	// Lock pins or records contents. It may be nil.
	Lock *Lock
	// Fetch sends a GET for URL with exactly these headers. It may be called after
	// the program's request has ended, if others wait for the same URL.
	Fetch func(ctx context.Context, header http.Header) (*http.Response, error)
}

// Result describes an answer.
type Result struct {
	Status int    // 0 if nothing was sent
	Bytes  int64  // of the body
	SHA256 string // of the whole content, in hexadecimal; "" if unknown
	Hit    bool   // no byte of the body was downloaded for this request
}

// DigestError reports a content with the wrong digest.
type DigestError struct {
	URL       string
	Want, Got Digest
}

func (e *DigestError) Error() string {
	return fmt.Sprintf("%s has the digest %s, want %s", e.URL, e.Got, e.Want)
}

// NotLockedError reports a URL that a [Lock] lacks, or has with another content.
type NotLockedError struct{ URL string }

func (e *NotLockedError) Error() string { return e.URL + " is not in the lock" }

// Cacheable reports whether a program's request may be answered from a cache.
func Cacheable(r *http.Request) bool {
	if r.Method != http.MethodGet || r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return false
	}
	size := 0
	for _, accept := range r.Header["Accept"] {
		size += len(accept)
	}
	return size <= maxAcceptBytes && !slices.ContainsFunc([]string{"Authorization", "Proxy-Authorization", "Cookie", "Range", "Upgrade"}, func(name string) bool { return r.Header[name] != nil })
}

type entry struct {
	URL     string      `json:"url"`
	Accept  string      `json:"accept"`
	Header  http.Header `json:"header"`
	SHA256  string      `json:"sha256"`
	Size    int64       `json:"size"`
	Checked Digest      `json:"checked"` // the index's digest that the content was checked against
	Time    time.Time   `json:"time"`    // when the server was asked last
}

// entryKey returns the name of an entry. Names for the same URL share a prefix.
func entryKey(url, accept string) string {
	return hashText(url) + "-" + hashText(accept)[:16]
}

func hashText(s string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(s)))
}

func (c *Cache) entryPath(key string) string {
	return filepath.Join(c.dir, "entries", key[:2], key+".json")
}

func (c *Cache) contentPath(sum string) string {
	return filepath.Join(c.dir, "content", sum[:2], sum)
}

// readEntry returns an entry and its open content, which the caller closes, or
// false if there is no usable one.
func (c *Cache) readEntry(name, url, accept string) (entry, *os.File, bool) {
	text, err := os.ReadFile(c.entryPath(name))
	if err != nil {
		return entry{}, nil, false
	}
	var e entry
	if json.Unmarshal(text, &e) != nil || e.URL != url || e.Accept != accept || len(e.SHA256) != 2*sha256.Size || strings.Trim(e.SHA256, "0123456789abcdef") != "" {
		return entry{}, nil, false
	}
	f, err := os.Open(c.contentPath(e.SHA256))
	if err != nil {
		return entry{}, nil, false
	}
	info, err := f.Stat()
	if err != nil || info.Size() != e.Size || !info.Mode().IsRegular() {
		_ = f.Close()
		return entry{}, nil, false
	}
	state.MarkUsed(f.Name())
	return e, f, true
}

// writeEntry writes an entry under its URL's name, and under a name that includes
// the content's, for locks.
func (c *Cache) writeEntry(e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	name := entryKey(e.URL, e.Accept)
	if err := os.MkdirAll(filepath.Dir(c.entryPath(name)), 0o700); err != nil {
		return err
	}
	for _, name := range []string{name + "-" + e.SHA256, name} {
		if err := c.replaceFile(c.entryPath(name), text); err != nil {
			return fmt.Errorf("write an entry of the cache: %w", err)
		}
	}
	return nil
}

// replaceFile replaces a file atomically.
func (c *Cache) replaceFile(path string, text []byte) error {
	if !c.temporary {
		return atomicwriter.WriteFile(path, text, 0o600)
	}
	f, err := os.CreateTemp(filepath.Join(c.dir, "tmp"), "entry-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func (c *Cache) removeEntry(e entry) {
	_ = os.Remove(c.entryPath(entryKey(e.URL, e.Accept)))
	_ = os.Remove(c.contentPath(e.SHA256))
}

// Visit calls visit with each content kept for a URL, regardless of Accept and age,
// until visit returns false.
func (c *Cache) Visit(url string, visit func(content io.Reader) bool) {
	sum := hashText(url)
	for _, name := range c.listVariants(sum) {
		text, err := os.ReadFile(filepath.Join(c.dir, "entries", sum[:2], name))
		if err != nil {
			continue
		}
		var named entry
		if json.Unmarshal(text, &named) != nil {
			continue
		}
		_, f, ok := c.readEntry(entryKey(url, named.Accept), url, named.Accept)
		if !ok {
			continue
		}
		more := visit(f)
		_ = f.Close()
		if !more {
			return
		}
	}
}

// listVariants returns the names of a URL's entries, by the URL's hash. It leaves
// out names that include a content's.
func (c *Cache) listVariants(sum string) []string {
	list, err := os.ReadDir(filepath.Join(c.dir, "entries", sum[:2]))
	if err != nil {
		return nil
	}
	var names []string
	for _, d := range list {
		if strings.HasPrefix(d.Name(), sum+"-") && len(d.Name()) == len(sum+"-0123456789abcdef.json") {
			names = append(names, d.Name())
		}
	}
	return names
}

// limitVariants removes a URL's oldest entries beyond maxVariants.
func (c *Cache) limitVariants(sum string) {
	dir := filepath.Join(c.dir, "entries", sum[:2])
	age := func(name string) time.Time {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			return time.Time{} // another process has removed it
		}
		return info.ModTime()
	}
	names := c.listVariants(sum)
	if len(names) <= maxVariants {
		return
	}
	slices.SortFunc(names, func(a, b string) int { return age(a).Compare(age(b)) })
	list, _ := os.ReadDir(dir)
	for _, name := range names[:len(names)-maxVariants] {
		for _, d := range list { // also those whose name includes the content's
			if strings.HasPrefix(d.Name(), strings.TrimSuffix(name, ".json")) {
				_ = os.Remove(filepath.Join(dir, d.Name()))
			}
		}
	}
}

type content struct {
	path string
	size int64
	used time.Time
}

// removeUnused removes the least recently used contents if there are too many, and
// entries without a content.
func (c *Cache) removeUnused() error {
	var list []content
	var total int64
	err := filepath.WalkDir(filepath.Join(c.dir, "content"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return state.IgnoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return state.IgnoreMissing(err)
		}
		list = append(list, content{path: path, size: info.Size(), used: info.ModTime()})
		total += info.Size()
		return nil
	})
	if err != nil {
		return fmt.Errorf("list a cache: %w", err)
	}
	if total > c.maxBytes {
		slices.SortFunc(list, func(a, b content) int { return a.used.Compare(b.used) })
		for _, one := range list {
			if total <= c.maxBytes/10*9 {
				break
			}
			if err := os.Remove(one.path); state.IgnoreMissing(err) != nil {
				return fmt.Errorf("remove from a cache: %w", err)
			}
			total -= one.size
		}
		err = filepath.WalkDir(filepath.Join(c.dir, "entries"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return state.IgnoreMissing(err)
			}
			var e entry
			text, err := os.ReadFile(path)
			if err != nil || json.Unmarshal(text, &e) != nil || len(e.SHA256) != 2*sha256.Size {
				return state.IgnoreMissing(os.Remove(path))
			}
			if _, err := os.Lstat(c.contentPath(e.SHA256)); errors.Is(err, fs.ErrNotExist) {
				return state.IgnoreMissing(os.Remove(path))
			}
			return nil
		})
	}
	c.mu.Lock()
	c.used = total
	c.mu.Unlock()
	return err
}
