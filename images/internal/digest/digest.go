// Package digest computes and checks SHA-256 digests as manifests write them.
package digest

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"regexp"
	"sync"
)

// digestPattern matches a digest.
var digestPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
})

// Valid reports whether text is a SHA-256 digest as manifests write it.
func Valid(text string) bool { return digestPattern().MatchString(text) }

// Of returns the digest of data.
func Of(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// Hex returns the hex digits of a valid digest, which name its file on disk.
func Hex(digest string) string { return digest[len("sha256:"):] }

// OfHash returns the digest of the bytes written to h, a SHA-256 hash.
func OfHash(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }
