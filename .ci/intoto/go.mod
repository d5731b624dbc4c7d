// The test that verifies attestations with the libraries of in-toto and DSSE.
module github.com/caisson-run/caisson/ci/intoto

go 1.26.5

require (
	github.com/in-toto/attestation v1.1.2
	github.com/secure-systems-lab/go-securesystemslib v0.11.1
	google.golang.org/protobuf v1.36.11
)

require (
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
