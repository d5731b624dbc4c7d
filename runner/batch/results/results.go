// Package results stores the results of a batch that several machines run: in a directory
// that they share, or in a bucket of an S3 service.
//
// A store is a set of objects that never change. An object is created only if no other of
// its name exists, so that of two machines that ran one trial the first one's result counts,
// on every machine.
package results

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
)

// ErrExists is the error for an object that exists already.
var ErrExists = errors.New("the object exists already")

// Store stores objects. Names are two parts separated by a slash, such as trials/NAME, of
// letters, digits, and the characters "-", "_" and ".", and don't begin with ".". It is safe
// for concurrent use.
type Store interface {
	// Put creates an object from all of content, whose size is known. After it returns nil,
	// the object outlives the process and the machine. Its error wraps [ErrExists] if the
	// object exists; nothing has changed then.
	Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error
	// Get opens an object, which the caller closes. Its error wraps [fs.ErrNotExist] if
	// there is none.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// Has reports whether an object exists.
	Has(ctx context.Context, name string) (bool, error)
	// List returns the second parts of the names of all objects with a first part, sorted.
	List(ctx context.Context, dir string) ([]string, error)
	// String returns where the store is, without secrets.
	String() string
}

// Open opens the store at a location: the path of a directory, which is made if it is
// missing, or s3://BUCKET or s3://BUCKET/PREFIX, a bucket that exists. Lookup returns
// variables of the environment: for S3 the usual AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
// AWS_SESSION_TOKEN, AWS_REGION, and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for services
// other than Amazon's. It creates an object in the store and fails unless creating it a
// second time fails: a service that ignores the condition would lose results.
func Open(ctx context.Context, location string, lookup func(name string) (string, bool)) (Store, error) {
	s, err := openStore(location, lookup)
	if err == nil {
		err = checkConditional(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("results in %s: %w", location, err)
	}
	return s, nil
}

func openStore(location string, lookup func(name string) (string, bool)) (Store, error) {
	if !strings.Contains(location, "://") {
		dir, err := filepath.Abs(location)
		if err != nil {
			return nil, err
		}
		return openDirectory(dir)
	}
	u, err := url.Parse(location)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want the path of a directory, or s3://BUCKET/PREFIX")
	}
	return openBucket(u.Host, strings.Trim(u.Path, "/"), lookup)
}

// probeName is an object that each store has.
const probeName = "store/version-1"

// ErrUnconditional is the error for a store that replaces objects which it must not.
var ErrUnconditional = errors.New("the store does not refuse to replace an object")

// checkConditional returns an error unless a store can be written to and refuses to replace
// an object.
func checkConditional(ctx context.Context, s Store) error {
	for range 2 {
		if err := s.Put(ctx, probeName, strings.NewReader("1\n"), 2); errors.Is(err, ErrExists) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return ErrUnconditional
}

// checkName returns an error for a name that is none.
func checkName(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) != 2 {
		return fmt.Errorf("invalid name %q of an object: want two parts", name)
	}
	for _, p := range parts {
		valid := p != "" && p[0] != '.' && strings.IndexFunc(p, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
		}) < 0
		if !valid {
			return fmt.Errorf("invalid name %q of an object", name)
		}
	}
	return nil
}
