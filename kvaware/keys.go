// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"weak"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/tokenize"
)

// leastSecret is the length of the shortest secret that is taken, in bytes.
const leastSecret = 16

// hashKeys are what the hashes of a pool are keyed by, so that no client can aim at
// a collision. All are derived from one seed, each for its purpose only, by HKDF
// with SHA-256 (RFC 5869). Equal seeds give the same keys in every process on
// machines of one byte order.
type hashKeys struct {
	id       keysID
	chains   uint64   // of models, adapters, salts and the blocks of prompts
	tenants  [32]byte // of what isolate_by says
	salts    [32]byte // of the salts that tenants get
	estimate *tokenize.Estimate
}

// keysID tells seeds apart. It says nothing of them, and is shown to nobody all
// the same: a secret that can be guessed can be tried against it.
type keysID [16]byte

// String stands for the id in errors.
func (id keysID) String() string {
	if id == (keysID{}) {
		return "none"
	}
	return "one that is not shown"
}

// derived are the keys in use, so that whoever names one seed has the same ones,
// and a cache knows its estimate again.
var derived = struct {
	sync.Mutex // guards byID
	byID       map[keysID]weak.Pointer[hashKeys]
}{byID: make(map[keysID]weak.Pointer[hashKeys])}

// keysOf derives the keys of a seed or a secret.
func keysOf(seed []byte) *hashKeys {
	k := new(hashKeys)
	copy(k.id[:], subkey(seed, "id", len(k.id)))
	derived.Lock()
	defer derived.Unlock()
	if known := derived.byID[k.id].Value(); known != nil {
		return known
	}
	k.chains = binary.LittleEndian.Uint64(subkey(seed, "chains", 8))
	copy(k.tenants[:], subkey(seed, "tenants", len(k.tenants)))
	copy(k.salts[:], subkey(seed, "salts", len(k.salts)))
	k.estimate = tokenize.NewEstimate(binary.LittleEndian.Uint64(subkey(seed, "estimates", 8)))
	derived.byID[k.id] = weak.Make(k)
	runtime.AddCleanup(k, forgetKeys, k.id)
	return k
}

// forgetKeys lets go of keys that nobody holds, unless they were made again.
func forgetKeys(id keysID) {
	derived.Lock()
	defer derived.Unlock()
	if derived.byID[id].Value() == nil {
		delete(derived.byID, id)
	}
}

// randomKeys are those of a seed that nobody else has.
func randomKeys() *hashKeys { return keysOf(newSeed()) }

func newSeed() []byte {
	seed := make([]byte, seedSize)
	_, _ = rand.Read(seed) // never fails
	return seed
}

// subkey derives the key for one purpose.
func subkey(seed []byte, purpose string, length int) []byte {
	key, err := hkdf.Key(sha256.New, seed, nil, "caddy-kvaware "+purpose, length)
	if err != nil {
		panic(err) // for lengths beyond 8 KiB only
	}
	return key
}

// tenant gives the hash of a tenant's name.
func (k *hashKeys) tenant(name string) uint64 {
	sum := mac(&k.tenants, name)
	return binary.LittleEndian.Uint64(sum[:])
}

// mac authenticates texts under a key: SHA-256 of the key, all lengths, and the
// texts. No such input is the beginning of another, which is what a keyed hash of
// this form asks for.
func mac(key *[32]byte, texts ...string) [sha256.Size]byte {
	var room [256]byte
	input := append(room[:0], key[:]...)
	for _, text := range texts {
		input = binary.LittleEndian.AppendUint64(input, uint64(len(text)))
	}
	for _, text := range texts {
		input = append(input, text...)
	}
	return sha256.Sum256(input)
}

// keysOfSecret derives the keys of the option `secret`; nil without it. Its
// errors quote nothing of it.
func keysOfSecret(repl *caddy.Replacer, secret string) (*hashKeys, error) {
	if secret == "" {
		return nil, nil
	}
	replaced, err := repl.ReplaceOrErr(secret, true, true)
	if err != nil {
		return nil, fmt.Errorf("secret: a placeholder in it is unknown or empty: give a value to the variable or file that it names")
	}
	if len(replaced) < leastSecret {
		return nil, fmt.Errorf("secret: %d bytes are too few: expecting at least %d, such as what `openssl rand -hex 32` prints", len(replaced), leastSecret)
	}
	return keysOf([]byte(replaced)), nil
}
