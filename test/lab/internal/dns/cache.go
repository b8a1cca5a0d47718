package dns

import (
	"context"
	"sync"
	"time"
)

// Cache remembers what a Lookup found.
type Cache struct {
	// Lookup is asked for what the cache does not have.
	Lookup Lookup
	// Fresh is how long the Cache answers without asking again. What is older it gives
	// only while Lookup fails, as when the API server is away.
	Fresh time.Duration
	// Limit is how many names the Cache remembers. It forgets all when there are more:
	// then it asks again.
	Limit int
	// Now is the clock.
	Now func() time.Time

	mutex   sync.Mutex
	entries map[Key]entry
}

type entry struct {
	found Found
	at    time.Time
}

// Get is a Lookup.
func (c *Cache) Get(ctx context.Context, key Key) (Found, error) {
	c.mutex.Lock()
	known, isKnown := c.entries[key]
	c.mutex.Unlock()
	if isKnown && c.Now().Sub(known.at) < c.Fresh {
		return known.found, nil
	}
	found, err := c.Lookup(ctx, key)
	if err != nil {
		if isKnown {
			return known.found, nil
		}
		return Found{}, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.entries == nil || len(c.entries) >= c.Limit {
		c.entries = map[Key]entry{}
	}
	c.entries[key] = entry{found, c.Now()}
	return found, nil
}
