package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
)

// tamperFile changes a cached response.
func tamperFile(t *testing.T, dir, sum string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, sum), []byte("evil"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := newCache(dir, 10, zap.NewNop())
	put := func(url, body string) {
		sum := sha256.Sum256([]byte(body))
		c.put(url, Response{URL: url, Body: []byte(body), SHA256: hex.EncodeToString(sum[:])})
	}
	put("a", "1234567")
	put("b", "1234567") // the same content costs nothing
	put("c", "1234")
	for url, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if _, ok := c.get(url); ok != want {
			t.Errorf("%s is kept: %v, want %v", url, ok, want)
		}
	}
	put("a", "12345") // there is no room for what it is now
	if res, ok := c.get("a"); ok {
		t.Errorf("a is still %q", res.Body)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v, want one file", entries, err)
	}
}

func TestCacheWithoutRoom(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCache(dir, 10, zap.NewNop())
	c.put("a", Response{Body: []byte("x"), SHA256: "y"})
	if _, ok := c.get("a"); ok {
		t.Error("stored without a directory")
	}
}
