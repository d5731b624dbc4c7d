package cache

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // registries still have it in their indexes, beside others
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Digest is the digest of a content, as a registry's index has it. The zero value
// means none.
type Digest struct {
	Algorithm string `json:"algorithm,omitempty"` // sha256, sha512 or sha1
	Sum       string `json:"sum,omitempty"`       // in lower-case hexadecimal
}

func (d Digest) String() string { return d.Algorithm + ":" + d.Sum }

// newHash returns the hash for a digest, or nil if the algorithm is unknown.
func (d Digest) newHash() hash.Hash {
	switch d.Algorithm {
	case "sha256":
		return sha256.New()
	case "sha512":
		return sha512.New()
	case "sha1":
		return sha1.New() //nolint:gosec // see the import
	}
	return nil
}

// Lock has the SHA-256 of contents by URL and Accept. A strict one, from
// [ReadLock], lets nothing else be served. One from [NewLock] records what is
// served. A nil Lock does neither. Locks are safe for concurrent use.
type Lock struct {
	strict bool
	mu     sync.Mutex
	sums   map[lockKey]string
}

type lockKey struct{ url, accept string }

// NewLock returns a lock that records what is served.
func NewLock() *Lock { return &Lock{sums: map[lockKey]string{}} }

const lockHeader = "# lock of an egress cache, version 1: SHA-256, URL, Accept"

// ReadLock reads a strict lock that [Lock.WriteTo] wrote.
func ReadLock(r io.Reader) (*Lock, error) {
	l := &Lock{strict: true, sums: map[lockKey]string{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<10)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 {
			if line != lockHeader {
				return nil, fmt.Errorf("line 1 of a lock is %q, want %q", line, lockHeader)
			}
			continue
		}
		sum, rest, _ := strings.Cut(line, " ")
		url, quoted, _ := strings.Cut(rest, " ")
		accept, err := strconv.Unquote(quoted)
		if raw, sumErr := hex.DecodeString(sum); sumErr != nil || len(raw) != sha256.Size || strings.ToLower(sum) != sum || url == "" || err != nil {
			return nil, fmt.Errorf("line %d of a lock is not a SHA-256, a URL and a quoted Accept header", n)
		}
		k := lockKey{url: url, accept: accept}
		if l.sums[k] != "" {
			return nil, fmt.Errorf("line %d of a lock is for a URL that it has already", n)
		}
		l.sums[k] = sum
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read a lock: %w", err)
	}
	return l, nil
}

// WriteTo writes the lock in the form that [ReadLock] reads.
func (l *Lock) WriteTo(w io.Writer) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for k, sum := range l.sums {
		lines = append(lines, sum+" "+k.url+" "+strconv.Quote(k.accept)+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[2*sha256.Size:], b[2*sha256.Size:]) })
	n, err := io.WriteString(w, lockHeader+"\n"+strings.Join(lines, ""))
	return int64(n), err
}

// IsStrict reports whether the lock lets nothing else be served.
func (l *Lock) IsStrict() bool { return l != nil && l.strict }

// findSum returns the hash that a URL must have, or "" if the lock isn't strict.
// Its error is a *[NotLockedError].
func (l *Lock) findSum(url, accept string) (string, error) {
	if !l.IsStrict() {
		return "", nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sum, ok := l.sums[lockKey{url, accept}]
	if !ok {
		return "", &NotLockedError{URL: url}
	}
	return sum, nil
}

// checkContent returns a *[NotLockedError] if a strict lock doesn't have a
// downloaded content.
func (l *Lock) checkContent(e entry) error {
	if sum, err := l.findSum(e.URL, e.Accept); err != nil || sum != "" && sum != e.SHA256 {
		return &NotLockedError{URL: e.URL}
	}
	return nil
}

func (l *Lock) noteContent(e entry) {
	if l == nil || l.strict || e.SHA256 == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums[lockKey{e.URL, e.Accept}] = e.SHA256
}
