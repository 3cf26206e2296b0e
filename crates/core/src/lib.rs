//! The pure core of leasehold: names, claims, tokens, the admission predicate, the machines and the store contract
