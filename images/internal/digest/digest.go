package digest

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"regexp"
	"sync"
)

// digestText is how a digest is written.
var digestPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
})

// validDigest reports whether text is written as a digest.
func Valid(text string) bool { return digestPattern().MatchString(text) }

// sumOf is the digest of data.
func Of(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// hexOf is the name of a digest on disk.
func Hex(digest string) string { return digest[len("sha256:"):] }

// digestOf is the digest of what h has read.
func OfHash(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }
