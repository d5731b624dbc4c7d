// Package digest computes and checks SHA-256 digests in the form of manifests.
package digest

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"regexp"
	"sync"
)

var digestPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
})

// Valid reports whether text is a SHA-256 digest.
func Valid(text string) bool { return digestPattern().MatchString(text) }

// Of returns the digest of data.
func Of(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// Hex returns a valid digest's hex digits, which name its file on disk.
func Hex(digest string) string { return digest[len("sha256:"):] }

// OfHash returns the digest of what was written to h, a SHA-256 hash.
func OfHash(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }
